"""What goes beyond the blog: one idea a file. Start with sampling.py, the paper's two algorithms."""
