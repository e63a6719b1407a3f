"""Staged (multi-level) drafting: with a/b, model a drafts for the target, and b drafts for a.

It is speculative sampling once more, with a's model as the target. The tokens are distributed as a's own, so p are the
rows that a gave for their places, whichever drafter proposed them.

Source: Spector and Re 2023, "Accelerating LLM Inference with Staged Speculative Decoding"; Georganas et al. 2025,
"ML-SpecQD: Multi-Level Speculative Decoding with Quantized Drafts".
"""

from collections.abc import Callable

from speculative.sampling import Proposal, speculative_sampling


def staged(name: str, model: Callable, new_draft: Callable, K: int, rng, accept: Callable, go_on) -> Callable:
    """The drafter `name`, whose model is sped up by new_draft(), K tokens at a time. accept: a lossless rule."""

    def draft(x, k):  # [n], k -> [k], [k, n_vocab]
        tokens = []
        p = []
        source = []
        margins = []
        steps = []
        for step in speculative_sampling(x, new_draft(), model, k, K, rng, accept):
            steps.append(step)
            tokens += step.tokens
            p += [*step.q[: len(step.tokens)]]
            source += [*step.proposal.source[: step.accepted], name]  # a step's last token is the model's own
            new = model.margins(len(step.tokens))
            margins += new
            goes = [go_on(m) for m in new]
            if not all(goes):
                import os
                if os.environ.get("TRUNC"):
                    cut = len(new) - 1 - goes.index(False)
                    if cut:
                        del tokens[-cut:], p[-cut:], source[-cut:], margins[-cut:]
                break
        return Proposal(tokens, p, source, steps, margins)

    return draft
