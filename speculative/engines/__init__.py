"""From parameters to model(x, n_last) -> distributions [n_last, n_vocab], by engines that make a forward pass fast.

Read model.py first, then the files that it stands on, each from tokens to logits:

    model.py            a network, then temperature and filters; a log of the calls (calls.py)
    network.py          a network
    cached_network.py   a network with a KV cache: of x it computes the rows that the cache lacks (shared_cache.py)
    plain.py            the forward pass that it calls: gpt2.py with a cache. Its twins are c/forward.py, jax/forward.py
    together.py         the calls of several texts as one call

An engine makes networks: contract.py says what it is asked, choice.py chooses it, and c/engine.py, jax/engine.py and
numpy_engine.py answer. formats.py has the formats of weights, memory.py the check that they fit.
"""
