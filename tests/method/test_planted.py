"""Mistakes that are planted in the method, its rules and its drafters: the enumeration of all paths sees each."""

import numpy as np
import pytest
import wrong_twins
from enumeration import World, twins
from mistakes import Mistakes, make

from speculative import drafters, rules, sampling
from speculative.drafters import first_of, lookup, model, staged, user
from speculative.drafters.base import proposal_of
from speculative.drafters.heads import HeadsOfTarget
from speculative.drafters.lookup import prompt_lookup
from speculative.drafters.model import drawn_siblings
from speculative.lookahead.auto import AutoDrafter
from speculative.rules import Block, OneByOne, block_chances
from speculative.run import decode
from speculative.run.decode import new_context, new_loop
from speculative.sampling import NOTHING, ratio, residual, speculative_sampling, token_by_token
from speculative.support.errors import UserError
from speculative.trees import children_of, draft_at

# Options with which a mistake shows.
CHAIN = {"K": 2}
BLOCK = {"K": 3, "accept": "block"}
HEADS = CHAIN | {"drafter": "heads"}  # they draft from the second call on
TREE = {"tree": (2, 1)}
AUTO = {"K": "auto"}

mistakes = Mistakes()
# The right ones, which wrong twins call.
judge, judge_block, ask_auto = OneByOne.judge, Block.judge, AutoDrafter.__call__
staged_drafter, draft_by_heads = staged.staged, HeadsOfTarget.chain

mistakes.plant(CHAIN, sampling, "token_by_token")(wrong_twins.accepts_nine_of_ten)
mistakes.plant(CHAIN, sampling, "token_by_token")(wrong_twins.draws_the_bonus_token_from_the_row_before)
mistakes.plant(CHAIN, sampling, "residual")(wrong_twins.draws_from_q_after_a_rejection)
mistakes.plant(CHAIN, model, "model_drafter")(wrong_twins.draws_from_p_squared)
mistakes.plant(CHAIN, model, "model_drafter")(wrong_twins.drops_drafts_from_the_first_unlikely_one)
mistakes.plant(AUTO, model, "model_drafter")(wrong_twins.drops_drafts_from_the_first_unlikely_one)


@mistakes.plant(CHAIN, sampling, "speculative_sampling")
def drafts_beyond_the_end(x, draft, target_model, N, K, rng, accept=token_by_token):
    return speculative_sampling(x, lambda x, k: draft(x, K), target_model, N, K, rng, accept)


@mistakes.plant(TREE, sampling, "max_fn")
def does_not_normalise(x):
    return np.maximum(x, 0)


# ---- Rules -----------------------------------------------------------------------------------------------------------


@mistakes.plant(TREE, OneByOne, "residual_of")
def leaves_all_of_q_to_the_siblings(self, q, p, j):
    return q


@mistakes.plant(TREE, OneByOne, "judge")
def forgets_rejections_at_the_end(self, proposal, q, u):
    judgement = judge(self, proposal, q, u)
    node = 0
    for token in judgement.accepted:
        node = next(child for child in children_of(proposal)[node] if draft_at(proposal, child)[0] == token)
    return judgement._replace(rest=q[node])


@mistakes.plant(TREE, OneByOne, "judge")
def has_the_row_of_the_root_alone(self, proposal, q, u):
    return judge(self, proposal, q[[0] * len(q)], u)


def cut_to_1(product):
    return min(1.0, product)


def above_0(w, q, p, p_before):
    return np.maximum(w * q - p, 0)


def by_the_formula(s, w):
    return 1.0 if s == 0 and w == 1 else s / (s + (1 - w))


def chances_by(proposal, q, cut=cut_to_1, mass=above_0, passes=by_the_formula):
    """Return w and h of block_chances by these formulas: of the product of ratios, of w, q, p and p of the draft
    before, and of s and w."""
    p = proposal.p
    w, h = [1.0], [1.0]
    for i, j in enumerate(proposal.tokens, start=1):
        w.append(cut(w[-1] * ratio(q[i - 1], p[i - 1], j)))
        s = float(np.sum(mass(w[i], q[i], p[i], p[i - 1]))) if i < len(p) else 0.0
        h.append(passes(s, w[i]) if i < len(p) else w[i])
    return w, h


@mistakes.plant(BLOCK, rules, "block_chances")
def does_not_cut_the_product_to_1(proposal, q):
    return chances_by(proposal, q, cut=lambda product: product)


@mistakes.plant(BLOCK, rules, "block_chances")
def takes_the_mass_of_both_signs(proposal, q):
    return chances_by(proposal, q, mass=lambda w, q, p, p_before: abs(w * q - p))


@mistakes.plant(BLOCK, rules, "block_chances")
def takes_p_of_the_draft_before(proposal, q):
    return chances_by(proposal, q, mass=lambda w, q, p, p_before: np.maximum(w * q - p_before, 0))


@mistakes.plant(BLOCK, rules, "block_chances")
def passes_wherever_mass_is_left(proposal, q):
    return chances_by(proposal, q, passes=lambda s, w: float(s > 0))


@mistakes.plant(BLOCK, Block, "judge")
def forgets_the_blocks_chance_in_the_residual(self, proposal, q, u):
    judgement = judge_block(self, proposal, q, u)
    n = len(judgement.accepted)
    return judgement._replace(rest=residual(q[n], proposal.p[n])) if judgement.origin == "residual" else judgement


@mistakes.plant(BLOCK, Block, "judge")
def ends_at_the_first_failure(self, proposal, q, u):
    judgement = judge_block(self, proposal, q, u)
    n = [*(test.passed for test in judgement.tests), False].index(False)
    if n == len(judgement.tests):
        return judgement
    w, _ = block_chances(proposal, q)
    return judgement._replace(accepted=judgement.accepted[:n], rest=residual(w[n] * q[n], proposal.p[n]))


def test_the_formulas_beside_these_mistakes_are_those_of_the_rule():
    rng = np.random.default_rng(0)
    for _ in range(20):
        q, p = rng.dirichlet(np.ones(4), 4), rng.dirichlet(np.ones(4), 3)
        proposal = sampling.Proposal(rng.integers(4, size=3), p)
        assert chances_by(proposal, q) == block_chances(proposal, q)


# ---- Drafters --------------------------------------------------------------------------------------------------------


@mistakes.plant(TREE, model, "drawn_siblings")
def tells_an_even_p(p, width, rng):
    for token, row in drawn_siblings(p, width, rng):
        yield token, np.full_like(row, 1 / len(row))


@mistakes.plant(CHAIN | {"drafter": "prompt_lookup"}, lookup, "prompt_lookup")
def tells_an_even_p_of_look_ups(n_vocab):
    right = prompt_lookup(n_vocab)

    def draft(x, k, go_on=None):
        proposal = right(x, k, go_on)
        return proposal._replace(p=np.full((len(proposal.tokens), n_vocab), 1 / n_vocab))

    return draft


@mistakes.plant(HEADS, HeadsOfTarget, "chain")
def turns_the_heads_round(self, context):
    right = draft_by_heads(self, context)

    def draft(x, k, go_on=None):
        proposal = right(x, k, go_on)
        return proposal._replace(p=proposal.p[::-1])

    return draft


@mistakes.plant({"K": (2, 1), "drafter": "model/ngram"}, staged, "staged")
def tells_the_inner_drafters_p(name, model, new_draft, K, rng, accept):
    right = staged_drafter(name, model, new_draft, K, rng, accept)

    def draft(x, k, go_on=None):
        proposal = right(x, k, go_on)
        p = []
        for step in proposal.inner:
            p += [*step.proposal.p[: step.n_accepted], step.q[step.n_accepted]]
        return proposal._replace(p=p)

    return draft


@mistakes.plant(CHAIN | {"drafter": "model+prompt_lookup"}, drafters, "first_of")
def passes_over_what_was_drawn(drafters):
    if len(drafters) == 1:
        return first_of(drafters)

    def draft(x, size):
        for drafter in drafters:
            proposal = drafter(x, size)
            if len(proposal.tokens) and proposal.p[0][proposal.tokens[0]] > 0.4:
                break
        return proposal

    return draft


@mistakes.plant(CHAIN | {"drafter": "users"}, user, "proposal_of")
def squares_a_users_p(proposed, k, n_vocab, name):
    proposal = proposal_of(proposed, k, n_vocab, name)
    squared = np.square(proposal.p)
    return proposal._replace(p=squared / np.sum(squared, axis=-1, keepdims=True)) if len(squared) else proposal


@mistakes.plant(AUTO, AutoDrafter, "__call__")
def drops_a_proposal_after_it_was_drawn(self, x, k):
    proposal = ask_auto(self, x, k)
    is_likeliest = len(proposal.p) and proposal.p[0][proposal.tokens[0]] == proposal.p[0].max()
    return proposal if len(x) % 2 or is_likeliest else NOTHING


@mistakes.plant(CHAIN, decode, "new_loop")
def draws_drafts_by_a_twin_of_the_generator(setup, models, decoder, x, N, rng):
    of_loop, of_drafter = twins(rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "new_context", lambda setup, models, rng: new_context(setup, models, of_drafter))
        return new_loop(setup, models, decoder, x, N, of_loop)


# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mistake", mistakes, ids=str)
def test_a_planted_mistake_shows(mistake, monkeypatch):
    """In one of six random worlds. Without a mistake the distance is 0: see tests/law."""
    make(monkeypatch, mistake)
    options = mistake.seen_by

    def distance(seed):
        try:
            return World(monkeypatch, seed=seed, **options).distance(4 if options == HEADS else 3)
        except UserError:  # no token was drawn from such a p
            return 1.0

    assert any(distance(seed) > 1e-4 for seed in range(6))
