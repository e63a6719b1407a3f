"""From parameters to model(x, n_last) -> distributions [n_last, n_vocab], by engines that make a forward pass fast.

Read model.py first, then the files that it stands on, each from tokens to logits:

    model.py            a network, then temperature and filters; a log of the calls
    network.py          a network; one with a KV cache computes only the rows that the cache lacks
    plain.py            the forward pass that it calls: gpt2.py with a cache. Its twins are c/forward.py, jax/forward.py
    shared_cache.py     a cache that a target shares with its copies, or that holds a tree

An engine makes networks: contract.py has its methods, choice.py chooses it, and plain.py, c/engine.py and
jax/engine.py answer. formats.py has the formats of weights, memory.py the check that they fit.
"""
