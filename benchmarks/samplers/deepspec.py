"""Its verify_draft_tokens() with drafts of our loop."""

from types import SimpleNamespace

import torch
from deepspec.eval.base_evaluator import DraftProposal, verify_draft_tokens

from benchmarks.samplers.networks import in_batch


def rule(proposal, q, rng):
    drafts, p, q = in_batch(proposal, q)
    m = drafts.shape[1]
    ids = torch.cat([torch.zeros(1, 1, dtype=torch.long), drafts], dim=1)  # from the text's last token on
    output = SimpleNamespace(logits=q.double().log())
    proposed = DraftProposal(m, ids, p)
    verified = verify_draft_tokens(
        target_model=lambda **_: output,
        proposal=proposed,
        position_ids=ids,
        start=0,
        past_key_values_target=None,
        temperature=1.0,
        max_proposal_tokens=m,
    )
    return verified.committed_tokens[0]
