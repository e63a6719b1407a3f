"""Prints the first half of docs/walkthrough.md: the blog's two cases and a block, with the numbers of the bundled pair.

python -m benchmarks.walkthrough

It takes a second: the models run through gpt2.py as it is.
"""

from functools import partial

import numpy as np
from speculative.accept import TOKEN, choose

from benchmarks.common import MODELS, Parser
from speculative.checkpoints.loading import load_encoder_and_hparams, load_params
from speculative.drafters.model import model_drafter
from speculative.engines.plain import CachedModel
from speculative.filters import to_distribution
from speculative.measure.recorder import Recorder
from speculative.sampling import speculative_sampling
from speculative.support.errors import guarded

PROMPT = '"From the first, two facts were very obvious to me,'
K = 4
N = 24
TEMPERATURE = 1.0
SEED = 28
N_SHOWN = 6  # the likeliest tokens of a residual

PAGE = """# Three iterations, and why nothing is lost

The blog explains the loop with two cases: the target agrees with the draft, or rejects it. Here are both, from a run of
the bundled pair at temperature {temperature:g} with K = {K} and seed {seed}. Its prompt is

> {prompt}

`python -m benchmarks.walkthrough` prints this page, with the numbers that the loop computed, up to the proof. For each
token that the draft proposed, p is the draft's probability of it, q is the target's, and u is a random number from
[0, 1). A draft is accepted if u is below q / p. The chance of that is q / p, or 1 if q is larger than p.

## The target agrees

{agrees}
## The target rejects

{rejects}
## The window as a block

{blocks}"""

AGREES = """{steps}
**Step 4.** All {K} were accepted. The same call of the target also gave q for the next position. The bonus token is
drawn from that: {own}, with probability {q}. One call of the target has given {n} tokens:

> {text}

"""

REJECTS = """{steps}
The rest of the window is dropped untested, since it was drafted for a text that contains {draft}.

In its place the target draws from the residual max(0, q - p), divided by its sum. The residual leaves out the tokens
that the draft proposes too often, such as {draft}, and keeps those that it proposes too rarely. Its sum is {total}.
That is also 1 - Σ min(p, q), the chance that a draft is rejected at this position.

{table}

The draw gives {own}. The text grows by {n}:

> {text}
"""


BLOCKS = """\
`--accept block` goes on after a failure. w is the product of the ratios q / p so far, capped at 1 at each draft, and h
the chance that a draft's test passes. **All drafts up to the last one that passes are kept:**

    w_0 = 1,   w_i = min(1, w_(i-1) q_i(x_i) / p_i(x_i))          x_i is draft i, p_i and q_i its rows
    s_i = Σ max(0, w_i q_(i+1)(x) - p_(i+1)(x))                   over all tokens x
    h_i = s_i / (s_i + 1 - w_i);   for the last draft h_m = w_m

A window of a run with the same seed, whose text so far ends with `{before}`:

{table}

Token by token, these numbers reject {lost}. {passed} after it is likelier to the target than to the draft: w rises
again, the test passes, and all before it stay. Then {own} is drawn from max(0, w q - p), divided by its sum:

> {text}
"""


def run(rule=TOKEN):
    """-> (encoder, [(text before an iteration, the Iteration with its details), ...]) of a speculative run."""
    to_probs = partial(to_distribution, temperature=TEMPERATURE)
    rng = np.random.default_rng(SEED)
    recorder = Recorder(rule, details=True)
    encoder, hparams = load_encoder_and_hparams("tiny-target", str(MODELS))
    params = load_params(str(MODELS / "tiny-target"), hparams)
    target = recorder.target(CachedModel(params, hparams, to_probs))
    _, hparams = load_encoder_and_hparams("tiny-draft", str(MODELS))
    params = load_params(str(MODELS / "tiny-draft"), hparams)
    draft = recorder.draft(model_drafter(CachedModel(params, hparams, to_probs), rng))
    steps = speculative_sampling(encoder.encode(PROMPT), draft, target, N, K, rng, rule.chain)
    before = []
    tokens = []
    for step in recorder.watch(steps):
        before.append(PROMPT + encoder.decode(tokens))
        tokens += step.tokens
    return encoder, [*zip(before, recorder.iterations, strict=True)]


def quoted(encoder, token):
    """A token as Markdown code, with the blank that belongs to it: ` which`."""
    return f"`{encoder.decode([token])}`".replace("\n", "\\n")


def rows(header, cells):
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *cells])


def steps_1_to_3(encoder, before, details):
    drafts = [quoted(encoder, token) for token in details["drafts"]]
    cells = []
    for token, test in zip(drafts, details["tested"], strict=False):
        u = test["u"]
        p = test["p"]
        q = test["q"]
        verdict = "accepted" if test["passed"] else "rejected"
        cells.append([token, f"{p:.3f}", f"{q:.3f}", f"{min(1, q / p):.2f}", f"{u:.2f}", verdict])
    cells += [[token, "", "", "", "", "not tested"] for token in drafts[len(cells) :]]
    table = rows(["draft", "p", "q", "min(1, q / p)", "u", ""], cells)
    return (
        f"The text so far ends with `{before[-24:]}`.\n\n"
        f"**Step 1.** The draft model proposes {len(drafts)} tokens, one after the other: {', '.join(drafts)}.\n\n"
        f"**Step 2.** One call of the target gives q for each of them, and for the position after the last.\n\n"
        f"**Step 3.** From left to right:\n\n{table}\n"
    )


def agrees(encoder, before, iteration):
    step = iteration.step
    own = iteration.details["own"]
    q = own["top"]["probability"][own["top"]["tokens"].index(step.tokens[-1])]
    return (
        AGREES.format(
            steps=steps_1_to_3(encoder, before, iteration.details),
            **{"K": step.drafted, "own": quoted(encoder, step.tokens[-1]), "q": f"{q:.3f}", "n": len(step.tokens)},
            text=before + encoder.decode(step.tokens),
        ).strip("\n")
        + "\n"
    )


def rejects(encoder, before, iteration):
    step = iteration.step
    details = iteration.details
    top = details["tested"][-1]["top"]
    total = 1 - iteration.alpha[-1]
    likeliest = {token: (p, q) for token, p, q in zip(top["tokens"], top["p"], top["q"], strict=True)}
    residual = dict(zip(details["own"]["top"]["tokens"], details["own"]["top"]["probability"], strict=True))
    shown = [*likeliest][:N_SHOWN]
    cells = []
    for token in shown:
        p, q = likeliest[token]
        cells.append([quoted(encoder, token), f"{p:.3f}", f"{q:.3f}", f"{max(0, q - p):.3f}"])
        cells[-1].append(f"{max(0, q - p) / total:.3f}")
    drawn = step.tokens[-1]
    return REJECTS.format(
        steps=steps_1_to_3(encoder, before, details),
        draft=quoted(encoder, details["drafts"][step.accepted]),
        total=f"{total:.3f}",
        table=rows(["token", "p", "q", "max(0, q - p)", "of the sum"], cells),
        own=f"{quoted(encoder, drawn)}, whose share was {residual[drawn]:.3f}",
        n=f"{len(step.tokens)} tokens" if step.accepted else "one token",
        text=before + encoder.decode(step.tokens),
    )


def kept_token_by_token(tested):
    """The number of drafts of a window that are kept with these u, p and q."""
    passed = [test["u"] * test["p"] < test["q"] for test in tested]
    return [*passed, False].index(False)


def blocks(encoder, before, iteration):
    step = iteration.step
    details = iteration.details
    lost = kept_token_by_token(details["tested"])
    drafts = [quoted(encoder, token) for token in details["drafts"]]
    cells = []
    for i, (draft, test) in enumerate(zip(drafts, details["tested"], strict=True)):
        numbers = [f"{test[name]:.3f}" for name in ("p", "q")] + [f"{test[name]:.2f}" for name in ("w", "h", "u")]
        verdict = "passes" if test["passed"] else "fails"
        kept = "kept" if i < step.accepted else "dropped"
        cells.append([draft, *numbers, f"{verdict}, {kept}"])
    return BLOCKS.format(
        before=before[-24:],
        table=rows(["draft", "p", "q", "w", "h", "u", ""], cells),
        lost=drafts[lost],
        passed=drafts[step.accepted - 1],
        own=quoted(encoder, step.tokens[-1]),
        text=before + encoder.decode(step.tokens),
    )


def page():
    encoder, iterations = run()
    _, by_block = run(choose(accept="block"))
    gained = next(one for one in by_block if kept_token_by_token(one[1].details["tested"]) < one[1].step.accepted < K)
    whole = next(one for one in iterations if one[1].step.accepted == K)
    rejected = next(one for one in iterations if 0 < one[1].step.accepted < one[1].step.drafted)
    return PAGE.format(
        **{"temperature": TEMPERATURE, "K": K, "seed": SEED, "prompt": PROMPT},
        agrees=agrees(encoder, *whole),
        rejects=rejects(encoder, *rejected),
        blocks=blocks(encoder, *gained),
    )


def main(argv=None):
    Parser(__doc__).parse_args(argv)
    print(page(), end="")


if __name__ == "__main__":
    guarded(main)
