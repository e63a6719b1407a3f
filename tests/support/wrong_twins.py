"""Wrong twins of the method's functions, which both the enumeration and --verify have to see."""

from speculative.drafters.model import model_drafter
from speculative.sampling import Proposal, residual, sample, token_by_token


def accepts_nine_of_ten(proposal, q, rng):
    """In place of token_by_token."""
    tokens = []
    for i, j in enumerate(proposal.tokens):
        if rng.random() >= 0.9:
            return [*tokens, sample(residual(q[i], proposal.p[i]), rng)]
        tokens.append(int(j))
    return [*tokens, sample(q[-1], rng)]


def draws_the_bonus_token_from_the_row_before(proposal, q, rng):
    """In place of token_by_token."""
    return token_by_token(proposal, [*q[:-1], q[max(0, len(q) - 2)]], rng)


def draws_from_q_after_a_rejection(q, p):
    """In place of residual."""
    return q


def draws_from_p_squared(model, rng, name="model"):
    """In place of model_drafter."""

    def draft(x, k, go_on=None):
        tokens, p = [], []
        for _ in range(k):
            [row] = model([*x, *tokens])
            p.append(row)
            tokens.append(sample(row**2, rng))
        return Proposal(tokens, p, [name] * k)

    return draft


def drops_drafts_from_the_first_unlikely_one(model, rng, name="model"):
    """In place of model_drafter: whether a draft is dropped depends on what was drawn."""
    right = model_drafter(model, rng, name)

    def draft(x, k, go_on=None):
        proposal = right(x, k, go_on)
        are_likely = [row[token] >= 0.4 for row, token in zip(proposal.p, proposal.tokens, strict=True)]
        n = [*are_likely, False].index(False)
        return Proposal(*(part[:n] for part in proposal))

    return draft
