"""The law of programs that draw with PyTorch. The tests are skipped where it is not installed."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from test_law import planted
from test_readme import fences

import speculative
from speculative.laws import check as check_law
from speculative.laws.cases import CASES

torch = pytest.importorskip("torch")

LOOP = """
import math
import torch
from torch import distributions

GENERATOR = torch.Generator().manual_seed(1)

def sample(p):  # [n_vocab] -> [1]
    return torch.multinomial(p, 1)

def speculative_sampling(x, draft_model, target_model, N, K):
    T = len(x) + N
    while len(x) < T:
        n = len(x)
        x_draft, rows = x, []
        for _ in range(K):
            rows.append(draft_model(x_draft)[-1])
            x_draft = torch.cat([x_draft, sample(rows[-1])])
        p = torch.stack(rows)  # [K, n_vocab]
        q = target_model(x_draft)[n - 1 :]  # [K + 1, n_vocab]
        at = torch.arange(K), x_draft[n:]
        ratios = q[at] / p[at]  # [K]
        passed = torch.rand_like(ratios) < ratios  # [K]
        n_accepted = int(passed.long().cumprod(0).sum())
        rest = q[-1] if n_accepted == K else (q[n_accepted] - p[n_accepted]).clamp(min=0)
        x = torch.cat([x_draft[: n + n_accepted], sample(rest)])
    return x
"""
SAMPLE, TEST = "torch.multinomial(p, 1)", "torch.rand_like(ratios) < ratios"


@pytest.fixture(autouse=True)
def few_cases(monkeypatch):
    monkeypatch.setattr(check_law, "CASES", CASES[::16])


RIGHT = [
    (SAMPLE, "p.multinomial(num_samples=1, generator=GENERATOR)"),
    (SAMPLE, "distributions.Categorical(probs=p).sample().reshape(1)"),
    (SAMPLE, "torch.argmax(p / torch.empty_like(p).exponential_(1), dim=-1, keepdim=True)"),
    (SAMPLE, "(p.log() - torch.log(-torch.log(torch.zeros_like(p).uniform_()))).topk(1).indices"),
    (SAMPLE, "(distributions.Gumbel(0.0, 1.0).sample(p.shape) + p.log()).max(-1, keepdim=True)[1]"),
    (SAMPLE, "torch.searchsorted(p.double().cumsum(0), torch.rand(1).double() * p.double().sum(), right=True)"),
    (SAMPLE, "(p.double().cumsum(0) <= torch.rand((), dtype=torch.float64) * p.double().sum()).sum().reshape(1)"),
    (TEST, "torch.rand(K, generator=GENERATOR) <= ratios.clamp(max=1)"),
    (TEST, "torch.bernoulli(ratios.clamp(max=1)).bool()"),
    (TEST, "torch.empty(K).uniform_(0, 1).log() < ratios.log()"),
    (TEST, "torch.tensor([torch.rand(1).item() < r for r in ratios.tolist()])"),
    (TEST, "torch.tensor([float(torch.rand(1)) < r for r in ratios])"),
    (TEST, "torch.tensor([math.log(torch.rand(1).item()) < math.log(r + 1e-30) for r in ratios.tolist()])"),
    (TEST, "torch.rand(K) * p[at] < q[at]"),
    (TEST, "(1 - torch.rand(2, K, dtype=torch.float64))[1].flip(0) < ratios"),
    (TEST, "torch.where(ratios < 1, torch.rand(K), 0.0) < ratios"),
    (TEST, "torch.from_numpy(torch.rand(K).numpy() < ratios.numpy())"),
    # The target's own samples: a draft is accepted if it is the same one.
    (TEST, "(own := torch.multinomial(q, 1)[:, 0])[:-1] == x_draft[n:]", "sample(rest)", "own[n_accepted : n_accepted + 1]"),
    # Numbers that are written into a part of another tensor.
    (TEST, "u[1] < ratios", "        passed", "        u = torch.zeros(2, K)\n        u[1].uniform_()\n        passed"),
    # Models of a batch that return logits.
    ("len(x)", "x.shape[1]", "(x_draft)[-1]", "(x_draft).logits.softmax(-1)[0, -1]", "(x_draft)[n - 1 :]", "(x_draft).logits.softmax(-1)[0, n - 1 :]", "x_draft[n:]", "x_draft[0, n:]", "sample(rows[-1])]", "sample(rows[-1])[None]], -1", "x_draft[: n + n_accepted], sample(rest)]", "x_draft[:, : n + n_accepted], sample(rest)[None]], -1"),
]  # fmt: skip
WRONG = [
    (SAMPLE, "torch.multinomial(p.bfloat16().float(), 1)"),
    (SAMPLE, "torch.argmax(p)[None]"),
    (TEST, "torch.rand(K, dtype=torch.bfloat16) < ratios"),
    (TEST, "torch.rand(1).expand(K) < ratios"),
    (TEST, "torch.rand_like(ratios) > ratios"),
    ("        p = ", "        torch.manual_seed(0)\n        p = "),
]  # fmt: skip


@pytest.mark.parametrize("replaced", RIGHT)
def test_a_right_loop_is_lossless(replaced):
    verdict = speculative.law(planted(LOOP, "speculative_sampling", *replaced))
    assert verdict.lossless, str(verdict)


@pytest.mark.parametrize("replaced", WRONG)
def test_a_mistake_is_seen(replaced):
    verdict = speculative.law(planted(LOOP, "speculative_sampling", *replaced))
    assert verdict.lossless is False, str(verdict)


def cached_sampling(x, draft_model, target_model, N, K):
    """Autoregressive sampling with a cache, whose last entry is cut off and read again."""
    cache = None
    for _ in range(N):
        output = target_model(x[:, cache.get_seq_length() if cache else 0 :], past_key_values=cache)
        token = torch.multinomial(output.logits[:, -1].softmax(-1), 1)  # [1, 1]
        x = torch.cat([x, token], -1)
        cache = output.past_key_values
        cache.crop(x.shape[1] - 2)
    return x


def as_hugging_face(candidate_input_ids, candidate_logits, candidate_length, new_logits, is_done):
    drafts = candidate_input_ids[:, -candidate_length:]  # [1, m]
    p, q = candidate_logits.softmax(-1), new_logits.softmax(-1)
    chosen = drafts[..., None]  # [1, m, 1]
    ratios = (q[:, :-1].gather(2, chosen) / p.gather(2, chosen))[..., 0]  # [1, m]
    n = int(((torch.rand_like(ratios) > ratios).cumsum(-1) < 1).sum())
    rest = (q[:, n] - p[:, n]).clamp(min=0) if n < candidate_length else q[:, n]
    return torch.cat([drafts[:, :n], torch.multinomial(rest, 1)], -1), n


def as_vllm(draft_token_ids, num_draft_tokens, draft_probs, target_probs, bonus_token_ids):
    """Flat: the drafts of all texts follow each other."""
    output = torch.full((len(num_draft_tokens), max(num_draft_tokens) + 1), -1)
    u = torch.rand(len(draft_token_ids))
    first = 0
    for text, m in enumerate(num_draft_tokens):
        for i, k in enumerate(range(first, first + m)):
            j = draft_token_ids[k]
            if u[k] > target_probs[k, j] / draft_probs[k, j]:
                rest = (target_probs[k] - draft_probs[k]).clamp(min=0)
                output[text, i] = torch.multinomial(rest, 1)
                break
            output[text, i] = j
        else:
            output[text, m] = bonus_token_ids[text, 0]
        first += m
    return output


def as_a_batch(target_with_bonus_probs, bonus_token_ids, draft_probs, draft_token_ids):
    q, m = target_with_bonus_probs[0], draft_token_ids.shape[1]
    for i, j in enumerate(draft_token_ids[0].tolist()):
        if torch.rand(1) > q[i, j] / draft_probs[0, i, j]:
            rest = torch.multinomial((q[i] - draft_probs[0, i]).clamp(min=0), 1)
            return torch.cat([draft_token_ids[0, :i], rest, torch.full((m - i,), -1)])[None]
    return torch.cat([draft_token_ids, bonus_token_ids], -1)


@pytest.mark.parametrize("function", [cached_sampling, as_hugging_face, as_vllm, as_a_batch])
def test_the_forms_of_others(function):
    verdict = speculative.law(function)
    assert verdict.lossless, str(verdict)


@pytest.mark.parametrize("fence", [0, 1])
def test_the_forms_of_the_docs(fence, monkeypatch):
    def rejection_sample(q, p, ids, bonus):
        return as_a_batch(torch.cat([q, q[:, -1:]], 1), bonus, p, ids)

    def sample_of_logits(ids, p, q):
        return as_hugging_face(ids, p, ids.shape[1], q, False)[0]

    monkeypatch.setitem(sys.modules, "engine.sampler", SimpleNamespace(rejection_sample=rejection_sample))
    names = {"sample_of_logits": sample_of_logits}
    exec(fences("docs/law.md")[fence], names)
    assert speculative.law(names["rule"]).lossless


def test_a_mistake_of_a_batch_is_seen():
    """The rows of the first text, in the place of each text's own."""

    def mixed(draft_token_ids, num_draft_tokens, draft_probs, target_probs, bonus_token_ids):
        m = num_draft_tokens[-1]
        rows = torch.arange(m)
        return as_vllm(draft_token_ids[-m:], [m], draft_probs[-m:], target_probs[rows], bonus_token_ids[-1:])

    assert speculative.law(mixed).lossless is False


def test_everything_is_given_back():
    item, tensor, state = torch.Tensor.item, torch.tensor, np.random.get_state()[1].copy()
    speculative.law(planted(LOOP, "speculative_sampling"))
    assert (torch.Tensor.item, torch.tensor) == (item, tensor)
    assert "item" not in vars(torch.Tensor)
    assert isinstance(torch.rand(1).item(), float)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
