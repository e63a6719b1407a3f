"""The tables of docs/walkthrough.md, computed anew: the blog's two cases and a block, from runs of the bundled pair."""

from types import SimpleNamespace

import numpy as np

from benchmarks import runs
from speculative.drafters.model import model_drafter
from speculative.rules import Tested, parse_rule
from speculative.run.observer import RecordedRandom, rebuilt_tests
from speculative.sampling import Step, speculative_sampling

PROMPT = '"From the first, two facts were very obvious to me,'
K = 4
N = 24
SEED = 28
N_SHOWN = 6  # the likeliest tokens of a residual


def tested_steps(session, accept: str) -> list[tuple[Step, list[Tested]]]:
    """The iterations of a speculative run with this rule, and the tests of each."""
    draft_model, target = runs.models_of(session)
    rule = parse_rule(accept)
    rng = RecordedRandom(np.random.default_rng(SEED))
    draft = model_drafter(draft_model, rng)
    found = []
    for step in speculative_sampling(session.encode(PROMPT), draft, target, N, K, rng, rule.accept):
        found.append((step, rebuilt_tests(step, rule, rng.u).tests))
        rng.u.clear()
    return found


def markdown(header: list[str], cells: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [header, *cells]]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def tests_table(drafts: list[str], tests: list[Tested]) -> str:
    cells = []
    for draft, t in zip(drafts, tests, strict=False):
        numbers = [f"{t.p:.3f}", f"{t.q:.3f}", f"{min(1, t.q / t.p):.2f}", f"{t.u:.2f}"]
        cells.append([draft, *numbers, "accepted" if t.passed else "rejected"])
    cells += [[draft, "", "", "", "", "not tested"] for draft in drafts[len(cells) :]]
    return markdown(["draft", "p", "q", "min(1, q / p)", "u", ""], cells)


def block_table(drafts: list[str], step: Step, tests: list[Tested]) -> str:
    cells = []
    for i, (draft, t) in enumerate(zip(drafts, tests, strict=True)):
        verdict = ("passes" if t.passed else "fails") + (", kept" if i < step.n_accepted else ", dropped")
        numbers = [f"{t.p:.3f}", f"{t.q:.3f}", f"{t.w:.2f}", f"{t.h:.2f}", f"{t.u:.2f}"]
        cells.append([draft, *numbers, verdict])
    return markdown(["draft", "p", "q", "w", "h", "u", ""], cells)


def main(argv: list[str]) -> None:
    sizes = {"draft_model_size": "tiny-draft", "target_model_size": "tiny-target", "models_dir": str(runs.MODELS)}
    session = runs.load(SimpleNamespace(**sizes, dtype="float32", draft_dtype="float32"), ["model"])

    def quoted(tokens) -> list[str]:
        """Tokens as Markdown code, with the blanks that belong to them: ` which`."""
        return [f"`{session.encoder.decode([int(token)])}`".replace("\n", "\\n") for token in tokens]

    by_token = tested_steps(session, "token")
    step, tests = next(one for one in by_token if one[0].n_accepted == K)
    print(tests_table(quoted(step.proposal.tokens), tests))
    [bonus] = quoted(step.tokens[-1:])
    print(f"\nThe bonus token {bonus} had probability {step.q[K][step.tokens[-1]]:.3f}.\n")

    step, tests = next(one for one in by_token if 0 < one[0].n_accepted < one[0].n_drafted)
    print(tests_table(quoted(step.proposal.tokens), tests))
    p, q = (np.asarray(rows[step.n_accepted], float) for rows in (step.proposal.p, step.q))  # [n_vocab] each
    left = np.maximum(0, q - p)  # [n_vocab]
    shown = np.argsort(-np.maximum(p, q), kind="stable")[:N_SHOWN]
    numbers = np.stack([p, q, left, left / left.sum()])[:, shown].T  # [N_SHOWN, 4]
    cells = [[name, *(f"{number:.3f}" for number in row)] for name, row in zip(quoted(shown), numbers, strict=True)]
    print("\n" + markdown(["token", "p", "q", "max(0, q - p)", "of the sum"], cells))
    [resampled] = quoted(step.tokens[-1:])
    print(f"\nThe sum is {left.sum():.3f}; {resampled} had a share of {left[step.tokens[-1]] / left.sum():.3f}.\n")

    for step, tests in tested_steps(session, "block"):
        n_kept = [*(t.u * t.p < t.q for t in tests), False].index(False)  # token by token
        if n_kept < step.n_accepted < K:
            break
    print(block_table(quoted(step.proposal.tokens), step, tests))
