"""engine.c: gpt2.py written again in C, its compiler, its packed weights, and its call from Python."""
