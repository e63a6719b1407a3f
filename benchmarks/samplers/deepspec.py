"""Its verify_draft_tokens() with drafts of our loop."""

from types import SimpleNamespace

from deepspec.eval.base_evaluator import DraftProposal, verify_draft_tokens

from benchmarks.samplers.networks import from_last, in_batch

ALWAYS = {"start": 0, "past_key_values_target": None, "temperature": 1.0}


def rule(proposal, q, rng):
    drafts, p, q = in_batch(proposal, q)
    ids, m = from_last(drafts), drafts.shape[1]
    given = {"target_model": lambda **_: SimpleNamespace(logits=q.log()), "proposal": DraftProposal(m, ids, p)}
    return verify_draft_tokens(**given, **ALWAYS, position_ids=ids, max_proposal_tokens=m).committed_tokens[0]
