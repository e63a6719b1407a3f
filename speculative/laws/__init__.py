"""The exact law of a program by enumeration, and the check of somebody's code.

The law of a sampler is the probability of each text. It runs once for each outcome of its random numbers, and the
probabilities of each text are added up. Read uniform.py, walks.py, traced.py, then cases.py, forms.py and check.py.

From Python, speculative.law(function) -> a Verdict, as in a test:

    def test_mine():
        assert speculative.law(mine).lossless
"""
