"""engine.c: gpt2.py written again in C, its compiler, its packed weights, and its call from Python.

In C, engine.c is the network, rows.c prepares rows and products.c multiplies, pack.c cuts a matrix into tiles, and
threads.c shares a pass among threads; amx.c multiplies where the CPU has AMX. In Python, library.py compiles, and reads
the structs that arguments.h declares; forward.py fills them and makes a call; cache.py has the KV cache, threads.py the
threads; packing.py and pack_files.py keep the tiles.
"""
