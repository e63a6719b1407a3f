"""The law of programs that draw with PyTorch. The tests skip without it; requirements-law.txt has it."""

import pkgutil
import random  # noqa: F401, for the expressions
import re
import sys
from ctypes import c_float  # noqa: F401, likewise
from types import SimpleNamespace

import numpy as np
import pytest
from followed import planted
from readme_words import fences
from tiny import ROOT

import speculative
from speculative.law.forks import NotFollowed
from speculative.law.paths import EXACT, distance, law_of, paths_of
from speculative.law.samplers import following
from speculative.law.samplers.cases import CASES
from speculative.law.samplers.guard import stand_ins_in

torch = pytest.importorskip("torch")
codes = pytest.importorskip("speculative.law.pytorch.codes")
distributions = pytest.importorskip("torch.distributions")

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


# Each is true with the chance 0.3, or 1 with this chance and 0 else. r = 0.3, rs = [0.3, 0.6], put(u) writes u.
CHANCES = """
torch.rand(1).item() < 0.3
(rs > torch.rand(1).item())[0]
torch.rand(1).ge(r).logical_not()
torch.minimum(rs, torch.ones(2))[0] > torch.rand(())
torch.zeros(2).bernoulli_(rs)[0] > 0
(rs - torch.rand(2)).sign()[0] > 0
torch.floor(r + 1 - torch.rand(())).bool()
(r + 1 - torch.rand(())).int().item() == 1
int(torch.rand(1) * 10) < 3
torch.rand(2).numpy().astype(np.float64)[1] < 0.3
(torch.rand(2).numpy() * 10).astype(int)[0] < 3
torch.from_numpy(np.random.rand(2).astype(np.float32))[1] < r
torch.tensor(random.random()) < r
torch.tensor([random.random(), 1.0], dtype=torch.float64)[0] < 0.3
torch.lt(rs, random.random())[0].logical_not()
torch.mul(rs, random.random())[0] < 0.09
put(random.random()) < r
put(torch.rand((), dtype=torch.float64)) < r
torch.where(torch.tensor([True, False]), torch.rand(2), torch.ones(2, dtype=torch.float64))[0] < 0.3
torch.cat([torch.rand(1), torch.zeros(1, dtype=torch.float64)])[0] < 0.3
torch.rand(2).masked_fill_(torch.tensor([True, False]), 2.0)[1] < r
torch.zeros(2).scatter_(0, torch.tensor([1]), torch.rand(1))[1] < r
(u := torch.rand(2)).isfinite().all() & (u == u)[0] & (u[0] < r)
(u := torch.rand(2)).log()[0] - (1 - u[0]).log() < r.logit()
distributions.Bernoulli(logits=torch.logit(rs)).sample()[0]
distributions.Exponential(1.0).sample() > -r.log()
distributions.Gumbel(0.0, 1.0).sample() < -(-r.log()).log()
torch.randint_like(rs, 10)[0] < 3
torch.empty(2, dtype=torch.long).random_(10)[0] < 3
torch.randint(0, 10**9, (2,))[1] / 10**9 < r
torch.randint(10**6, (1,)).item() < 300_000
torch.randint(1000, (1,)) < 300
(torch.randint(1000, (1,)) * 2).double() < 599
torch.tensor([torch.rand(()), torch.rand(())])[1] < r
torch.multinomial(torch.tensor([0.3, 0.7]), 1) == torch.tensor([0])
torch.multinomial(torch.tensor([0.3, 0.7]), 1) == torch.multinomial(torch.tensor([1.0, 0.0]), 1)
np.random.default_rng(random.randrange(2**31)).random() < r
"""
# Each draws from p = [0.5, 0.3, 0.2], whose sums are `sums`.
DRAWN = """
(E := torch.rand(3).log(), torch.stack([(E / p).argmax(), (E / p.flip(0)).argmax()]))[1][0]
distributions.Categorical(logits=p.log()).sample((1,))
(p / torch.empty_like(p).exponential_(1)).argmax()
(torch.empty_like(p).exponential_() / p).argmin()
torch.rand(3).pow(1 / p).argmax()
(torch.rand(3).log() / p).argsort(descending=True)[0]
(p.log() + distributions.Gumbel(torch.zeros(3), torch.ones(3)).sample()).argmax()
(p.log() - torch.log(-torch.log(torch.rand(3) + 1e-10) + 1e-10)).argmax()
(p.log() - torch.log(-torch.log(torch.rand(3).clamp(1e-7, 1 - 1e-7)))).argmax()
(p.log() + torch.from_numpy(np.random.gumbel(size=3))).argmax()
torch.searchsorted(sums, torch.rand(()).item())
torch.bucketize(torch.rand(1), sums, right=True)
(sums > torch.rand(1)).long().argmax()
torch.multinomial(p.expand(2, 3), 2, replacement=True)[1, 0]
torch.eye(3)[torch.multinomial(p, 1)[0]].argmax()
torch.eye(3)[:, torch.multinomial(p, 2, replacement=True)].argmax(0)[1]
[0, 1, 2][torch.multinomial(p, 1)]
torch.zeros(3).scatter_(0, torch.multinomial(p, 1), 1.0).argmax()
torch.stack([torch.multinomial(p, 1), torch.tensor([7])])[0, 0].clone()
torch.where(torch.tensor([True, False]), torch.multinomial(p, 1), 9)[0].float().int()
torch.cat([torch.multinomial(p, 1), torch.tensor([0.5])])[0]
torch.tensor([torch.multinomial(p, 1)[0], torch.tensor(5)])[0]
torch.arange(3)[: torch.multinomial(p, 1).item() + 1][-1]
(torch.multinomial(p, 1) + 1).sum() - 1
(x := torch.multinomial(p, 1), x.add_(5), x - 5)[2]
torch.zeros(4, dtype=torch.long).masked_fill_(torch.tensor([True] * 4), 1).copy_(torch.multinomial(p, 1))[3]
"""
# What cannot be followed, and says so.
NOT_FOLLOWED = """
torch.rand(2).view(torch.int32)[0] > 0
torch.zeros(2).index_put_((torch.tensor([0]),), torch.rand(1), accumulate=True)[0] < r
torch.zeros(2).scatter_(0, torch.tensor([0]), torch.rand(1), reduce="add")[0] < r
(p.log() - torch.log(-torch.log(torch.rand(3).clamp(max=0.999)))).argmax()
(p / (torch.empty_like(p).exponential_() + 0.01)).argmax()
(torch.rand(3) * p).argmax()
(E := torch.rand(3).log(), (E / p).argmax() + (E / p.flip(0)).argmax())[1]
torch.rand(2).sum() < r
c_float.from_address(torch.rand(1).data_ptr()).value < r
np.from_dlpack(torch.rand(1))[0] < r
torch.rand(1) * (1 - torch.rand(1)) < r
(u := torch.rand(1)) * (1 - u) < 0.1
"""


def law_of_expression(expression):
    """The law of an expression, in which the random numbers are unknown."""

    def put(u):
        numbers = torch.zeros(2)
        numbers[1] = u
        return numbers[1]

    p = torch.tensor([0.5, 0.3, 0.2])
    names = globals() | {
        "put": put,
        "p": p,
        "sums": p.cumsum(0),
        "r": torch.tensor(0.3),
        "rs": torch.tensor([0.3, 0.6]),
    }
    function = eval(f"lambda rng: int({expression})", names)
    with stand_ins_in(function):
        return law_of(function)


@pytest.mark.parametrize("expression", CHANCES.strip().splitlines())
def test_the_chance_of_a_comparison(expression):
    assert distance(law_of_expression(expression), {1: 0.3, 0: 0.7}) < EXACT


@pytest.mark.parametrize("expression", DRAWN.strip().splitlines())
def test_the_law_of_a_draw(expression):
    assert distance(law_of_expression(expression), {0: 0.5, 1: 0.3, 2: 0.2}) < EXACT


@pytest.mark.parametrize(
    "draw", ["torch.multinomial(p.expand(12, 3), 1)", "(p / torch.empty(12, 3).exponential_()).argmax(-1)"]
)
def test_what_is_drawn_and_not_looked_at_costs_no_path(draw):
    with stand_ins_in(law_of_expression):
        paths = paths_of(lambda rng: int(eval(draw, globals() | {"p": torch.tensor([0.5, 0.3, 0.2])})[7]))
    assert {path.outcome: path.weight for path in paths} == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2})


def test_a_half_type_has_room_after_many_other_numbers():
    law = law_of_expression("(torch.rand(100), torch.rand(1, dtype=torch.bfloat16) < 0.5)[1]")
    assert law == {1: 0.5, 0: 0.5}


@pytest.mark.parametrize("expression", NOT_FOLLOWED.strip().splitlines())
def test_what_cannot_be_followed(expression):
    with pytest.raises(NotFollowed, match="cannot be followed"):
        law_of_expression(expression)


@pytest.fixture(autouse=True)
def few_cases(monkeypatch):
    monkeypatch.setattr(following, "CASES", [CASES[i] for i in (0, 16, 64, 136, 162)])  # of few paths


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
    (TEST, "~(torch.rand_like(ratios) > torch.minimum(torch.ones(()), ratios))"),
    (TEST, "torch.lt(torch.tensor([random.random() for _ in range(K)]), ratios)", "import math", "import math, random"),
    # Numbers that are written into a part of another tensor.
    (TEST, "u[1] < ratios", "        passed", "        u = torch.zeros(2, K)\n        u[1].uniform_()\n        passed"),
    # Models of a batch that return logits.
    ("len(x)", "x.shape[1]", "(x_draft)[-1]", "(x_draft).logits.softmax(-1)[0, -1]", "(x_draft)[n - 1 :]", "(x_draft).logits.softmax(-1)[0, n - 1 :]", "x_draft[n:]", "x_draft[0, n:]", "sample(rows[-1])]", "sample(rows[-1])[None]], -1", "x_draft[: n + n_accepted], sample(rest)]", "x_draft[:, : n + n_accepted], sample(rest)[None]], -1"),
]  # fmt: skip
RIGHT += [
    ("target_model, N, K)", "target_model, N, K, generator=None)", SAMPLE, "torch.multinomial(p, 1, generator=GIVEN[0])", "    T = len(x) + N", "    GIVEN[:] = [generator]\n    T = len(x) + N", "GENERATOR = torch", "GIVEN = []\nGENERATOR = torch"),
    ("    T = len(x) + N", "    assert next(draft_model.parameters()).device == target_model.to('cpu').eval().device\n    T = len(x) + N"),
    ("(x_draft)[-1]", "(x_draft)['logits'].softmax(-1)[-1]", "(x_draft)[n - 1 :]", "(x_draft)['logits'].softmax(-1)[n - 1 :]"),
    ("sample(rest)", "sample(rest) if rest.sum() else 1 / 0", "    while", "    1 / (N - 1)\n    while"),
]  # fmt: skip
# The replacements of all drafts race before it is known which is needed: many paths.
RACED = ("sample(rest)", "raced[n_accepted : n_accepted + 1]", "        passed", "        raced = torch.cat([(q[:-1] - p).clamp(min=torch.finfo(torch.float32).tiny), q[-1:]])\n        raced = raced.div_(torch.empty_like(raced).exponential_()).argmax(-1)\n        passed")  # fmt: skip
WRONG = [
    (SAMPLE, "torch.multinomial(p.bfloat16().float(), 1)"),
    (SAMPLE, "torch.argmax(p)[None]"),
    (TEST, "torch.rand(K, dtype=torch.bfloat16) < ratios"),
    (TEST, "torch.rand(1).expand(K) < ratios"),
    (TEST, "torch.rand_like(ratios) > ratios"),
    (TEST, "(u := torch.rand(K)) < ratios", "sample(rest)", "torch.searchsorted(rest.cumsum(0), u[n_accepted - (n_accepted == K)].reshape(1) * rest.sum(), right=True)"),
    (".clamp(min=0)", ".abs()"),
    ("        p = ", "        torch.manual_seed(0)\n        p = "),
]  # fmt: skip


@pytest.mark.parametrize("replaced", [*RIGHT, RACED])
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


def as_newest_vllm(draft_token_ids, num_draft_tokens, draft_logits, target_logits, ignore_eos, is_eos, generator):
    """Flat: the target's rows of all texts follow each other, a bonus row after those of each text's drafts."""
    output = torch.full((len(num_draft_tokens), max(num_draft_tokens) + 1), -1)
    assert ignore_eos.all()
    assert not is_eos[: len(draft_token_ids)].any()
    for text, m in enumerate(num_draft_tokens):
        first = sum(num_draft_tokens[:text])
        p, q = (
            draft_logits[first : first + m].softmax(-1),
            target_logits[first + text : first + text + m + 1].softmax(-1),
        )
        for i, j in enumerate(draft_token_ids[first : first + m]):
            if torch.rand((), generator=generator) > q[i, j] / p[i, j]:
                output[text, i] = torch.multinomial((q[i] - p[i]).clamp(min=0), 1, generator=generator)
                break
            output[text, i] = j
        else:
            output[text, m] = torch.multinomial(q[m], 1, generator=generator)
    return output, None


@pytest.mark.parametrize("function", [as_newest_vllm, cached_sampling, as_hugging_face, as_vllm, as_a_batch])
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


# ---- PyTorch's private names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", codes.PRIVATE)
def test_this_version_of_pytorch_has_its_private_name(name):
    pkgutil.resolve_name(name)


def test_its_private_names_stand_in_one_file():
    name = re.compile(r"torch[\w.]*\._\w+|\._(schema|overloadname|make_subclass)\b")
    files = [path for path in (ROOT / "speculative" / "law").rglob("*.py") if path.name != "codes.py"]
    found = {match[0] for path in files for match in name.finditer(path.read_text(encoding="utf-8"))}
    assert found == {"torch._dynamo"}  # the name of a module that may have been imported
