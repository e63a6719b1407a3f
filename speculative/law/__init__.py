"""The exact law of a program by enumeration, and the check of somebody's sampler.

The law of a sampler is the probability of each text. The sampler runs once for each outcome of its random numbers, and
the probabilities of each text are added up:

    >>> from speculative.law.paths import law_of
    >>> law_of(lambda rng: bool(rng.random() < 0.3))
    {True: 0.3, False: 0.7}

A program with two forks has three paths, each given by the branches that it shall take first:

    def program(rng):
        if rng.random() < 0.3:
            return "a" if rng.random() < 0.5 else "b"
        return "c"

    given   taken   weight     outcome
    []      [0, 0]  0.3 * 0.5  a        which leaves [0, 1] and [1]
    [0, 1]  [0, 1]  0.3 * 0.5  b
    [1]     [1]     0.7        c

And speculative.law(function) -> a Verdict, as in a test:

    def test_mine():
        assert speculative.law(mine).lossless

One comparison, u < q / p with q / p = 0.4, from the sampler to the law:

    generators.py  UnknownGenerator.random          u, an UnknownNumber
    unknown.py     UnknownNumber.__array_ufunc__    np.less of u and 0.4
    unknown.py     computed                         a Formula of u
    uniform.py     ends_of, switch                  True near 0, False near 1, and the change is at 0.4
    uniform.py     Uniform.fork_at                  [0, 0.4, 1]: u is in one of these intervals
    walks.py       Walk.take_branch                 [0.4, 0.6]: one is taken, the other path is left for later
    paths.py       law_of                           adds the weight of the path to its outcome

The files in the order of reading, each before those that use it:

    uniform     a random number that is not known yet: a comparison is a fork
    races       which of many random numbers is the largest, as one fork
    unknown     such numbers in the place of floats and arrays
    of_python   what stands for Python's float and math
    walks       the walk along all paths
    generators  generators of these numbers, in the place of NumPy's and Python's
    paths       law_of

    pytorch/    the same for PyTorch's tensors and generators; may be skipped at first
    samplers/   the check of somebody's sampler

The words:

    law            {outcome: its probability}
    unknown number a random number that is not known yet: a formula of a u between 0 and 1
    fork           where a program asks something of a random number, and several answers are possible
    branch         one answer at a fork, by its number
    path           a run of the program with a branch at each fork; its probability is the product of theirs
    node           a random number, or a call of a model, in a path
    race           an argmax of random numbers, as one fork: which of them is the largest
    duel           a comparison of two random numbers, as in max: a race of two
    bit generator  what generators of one seed draw from, in NumPy's word; its state begins anew in each path
    stand-in       what is put in the place of a generator or function while somebody's code runs
"""

import sys
from types import ModuleType
from typing import Any


class LawPackage(ModuleType):
    """This package, which is called like its function: speculative.law(function)."""

    def __call__(self, function: Any) -> Any:
        from speculative.law.samplers.check import law  # not before it is asked for: its libraries take a while

        return law(function)


sys.modules[__name__].__class__ = LawPackage
