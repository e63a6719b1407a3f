"""The engines, which make a forward pass fast: each is a function model(x, n_last) -> [n_last, n_vocab]."""
