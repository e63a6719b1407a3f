"""PyTorch's random numbers that are not known yet.

    u = torch.rand(1)       # a NaN with the code 1, which stands for a random number in a list
    v = u[0] / 2            # the index is PyTorch's own; the half is computed here: a NaN with the code 2
    v < 0.3                 # a fork: a tensor of True or of False
    v.item() < 0.3          # the same of a number in Python, an UnknownNumber
    torch.stack([v]).sum()  # NotFollowed

The files in the order of reading:

    codes         unknown numbers in ordinary tensors, as codes in NaNs
    operations    what is done with operations that are given unknown numbers
    draws         the operations that draw
    tensors       which operation is of which kind, and the mode
    torches       PyTorch while somebody's function is followed

The words:

    code          the index of an unknown number in the list of its path, as part of a NaN
    kind          a function that does an operation of unknown numbers: draw, move, compute ... refuse
    mode          what PyTorch shows its operations to, before they are done
    exit          a method of a tensor that gives its numbers to Python, as item
    entry         a function that makes a tensor of Python's numbers, as torch.tensor
"""
