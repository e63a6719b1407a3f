"""The exact law of a program by enumeration, and the check of somebody's sampler.

The law of a sampler is the probability of each text. It runs once for each outcome of its random numbers, and the
probabilities of each text are added up:

    >>> from speculative.laws.paths import law_of
    >>> law_of(lambda rng: bool(rng.random() < 0.3))
    {True: 0.3, False: 0.7}

And speculative.law(function) -> a Verdict, as in a test:

    def test_mine():
        assert speculative.law(mine).lossless

The files in the order of reading, each before those that use it:

    uniform     a random number that is not known yet: a comparison is a fork
    races       which of many random numbers is the largest, as one fork
    unknown     such numbers in the place of floats and arrays
    walks       the walk along all paths
    generators  generators of these numbers, in the place of NumPy's and Python's
    paths       law_of

    samplers/   the check of somebody's sampler
    pytorch/    the same for PyTorch's tensors and generators; may be skipped at first

The words:

    law            {outcome: its probability}
    unknown number a random number that is not known yet: a formula of a u between 0 and 1
    fork           where a program asks something of a random number, and several answers are possible
    branch         one answer at a fork, by its number
    path           a run of the program with a branch at each fork; its probability is the product of theirs
    node           a random number, or a call of a model, in a path
    race           an argmax of random numbers, as one fork: which of them is the largest
    duel           a comparison of two random numbers, as in max: a race of two
    stand-in       what is put in the place of a generator or function while somebody's code runs
"""
