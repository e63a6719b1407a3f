"""engine.c: gpt2.py written again in C, its compiler, its packed weights, and its call from Python.

In C, engine.c is the network, rows.c prepares rows and products.c multiplies, pack.c cuts a matrix into tiles, and
threads.c shares a pass among threads. In Python, forward.py makes a call: weights.py fills the structs, which layout.py
reads from arguments.h; cache.py has the KV cache and threads.py the threads. library.py compiles; packing.py and
pack_files.py keep the tiles.
"""
