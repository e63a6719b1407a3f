"""Typical acceptance: what is accepted, what is drawn where nothing is, and that it shows."""

import numpy as np
import pytest
from tiny import one_hot, texts

from speculative.drafters import Drafter
from speculative.drafters.model import model_drafter, model_tree
from speculative.one_hot import OneHot
from speculative.sampling import speculative_sampling
from speculative.trees import by_paths, regular, tree_speculative_sampling
from speculative.typical import ALL, TypicalTarget, certain, typical


def probable(q, epsilon):
    """As the paper writes it."""
    entropy = -sum(float(a) * np.log(float(a)) for a in q if a > 0)
    return [float(a) > min(epsilon, np.sqrt(epsilon) * np.exp(-entropy)) for a in q]


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.09, 0.3, 0.999999])
def test_what_is_left(epsilon):
    q = np.random.default_rng(0).dirichlet([0.3] * 8, size=50).astype(np.float32)  # [50, 8]
    q = np.concatenate([q, np.full((1, 8), 1 / 8, np.float32), np.eye(8, dtype=np.float32)[:1]])
    for row, left in zip(q, typical(q, epsilon), strict=True):
        expected = np.where(probable(row, epsilon), row, 0)
        np.testing.assert_allclose(left, expected / expected.sum(), rtol=1e-5)
    assert typical(one_hot(3), epsilon).tolist() == one_hot(3).tolist()
    greedy = OneHot([1, 2], 7)
    assert typical(greedy, epsilon) is greedy


@pytest.mark.parametrize("tree", [False, True])
def test_a_draft_is_accepted_where_it_is_probable_and_only_there(tree):
    rng, epsilon, accepted, rejected = np.random.default_rng(0), 0.2, 0, 0
    q, p = rng.dirichlet([0.5] * 6, size=(2, 6)).astype(np.float32)  # [6, 6] each: from the last token to the next
    target = TypicalTarget(lambda x, n_last=1: q[np.asarray(x)[len(x) - n_last :]], epsilon)
    model = lambda x, n_last=1: p[np.asarray(x)[len(x) - n_last :]]  # noqa: E731
    if tree:
        drafts = []

        def draft(x, shape):
            drafts.append(certain(Drafter(None, model_tree(by_paths(model), rng)), 6).tree(x, shape))
            return drafts[-1]

        for step in tree_speculative_sampling([0], draft, by_paths(target), 600, regular([2]), rng, lenience=ALL):
            left = probable(q[drafts[-1].tokens[0]], epsilon)
            passing = [token for token in drafts[-1].tokens[1:] if left[token]]
            assert left[step.tokens[0]] and (step.tokens[0] == passing[0] if passing else step.accepted == 0)
            accepted, rejected = accepted + step.accepted, rejected + (step.accepted == 0)
    else:
        x, drafted, draft = [0], [], model_drafter(model, rng)
        noted = lambda x, k: drafted.append(draft(x, k)) or drafted[-1]  # noqa: E731
        for step in speculative_sampling([0], certain(Drafter(noted), 6).chain, target, 600, 3, rng, lenience=ALL):
            for i, token in enumerate(step.tokens):
                left = probable(q[x[-1]], epsilon)
                assert left[token]
                if i < step.drafted:
                    guess = drafted[-1].tokens[i]
                    assert left[guess] == (i < step.accepted)
                x.append(token)
            accepted, rejected = accepted + step.accepted, rejected + (step.accepted < step.drafted)
    assert accepted > 50 and rejected > 10


@pytest.mark.parametrize("flags", [{"K": 3}, {"tree": "2,1"}, {"K": "auto"}])
def test_it_is_noted_seen_and_changes_nothing_at_temperature_0(run, run_verify, flags):
    out = run(typical=0.3, temperature=1, **flags)
    assert "Note: with typical acceptance, ε = 0.3, the speculative text is not" in " ".join(out.split())
    assert "Note: with typical" not in run(temperature=1, **flags)
    plain, speculative = texts(run(typical=0.3, quiet=True, **flags))
    assert plain == speculative
    status, out = run_verify(draws=40, typical=0.9, temperature=9, **flags)
    assert status == 1 and "FAILED  speculative against the target" in out and "NOT lossless" in out
