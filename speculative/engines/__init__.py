"""How a forward pass is made fast. Each engine is a function model(x, n_last) -> [n_last, n_vocab] distributions."""
