"""The exact law of a program by enumeration, and the check of somebody's code.

The law of a sampler is the probability of each text. It runs once for each outcome of its random numbers, and the
probabilities of each text are added up:

    >>> from speculative.laws.paths import law_of
    >>> law_of(lambda rng: bool(rng.random() < 0.3))
    {True: 0.3, False: 0.7}

And speculative.law(function) -> a Verdict, as in a test:

    def test_mine():
        assert speculative.law(mine).lossless

The files, in the order of reading:

    the law              uniform, unknown, walks, paths
    random numbers       traced: generators of them; races: the largest; replaced: in the place of NumPy's and Python's
    the check            cases, models, forms, texts, check
    its words            mistakes, causes, words
    what is not followed drawn: texts are drawn, and counted
    PyTorch              tensors, operations, torches, outputs; may be skipped at first

The words:

    law            {outcome: its probability}
    fork           where a program asks something of a random number, and several answers are possible
    branch         one answer at a fork, by its number
    path           a run of the program with a branch at each fork; its probability is the product of theirs
    race           an argmax of random numbers, as one fork: which of them is the largest
    duel           a comparison of two random numbers, as in max: a race of two
    stand-in       what is put in the place of a generator or function while somebody's code runs
    form           the parameters by which a function is recognised, and so how it decodes
    line of cases  the cases of one kind and one set of lengths, whose models are different
"""
