"""PyTorch's random numbers that are not known yet.

The files in the order of reading:

    operations    what each kind of PyTorch's operations does with unknown numbers
    tensors       unknown numbers in ordinary tensors, as codes in NaNs
    torches       PyTorch while somebody's function is followed
    outputs       what a model returns to somebody who works with PyTorch
"""
