"""The tables of docs/walkthrough.md, computed anew: the blog's two cases and a block, from runs of the bundled pair."""

from types import SimpleNamespace

import numpy as np

from benchmarks import runs
from speculative.drafters.model import model_drafter
from speculative.sampling import speculative_sampling

PROMPT = '"From the first, two facts were very obvious to me,'
K = 4
N = 24
TEMPERATURE = 1.0
SEED = 28
N_SHOWN = 6  # the likeliest tokens of a residual


class Draws(list):
    """The numbers that a generator has drawn, in order; it draws them itself."""

    rng: np.random.Generator

    def random(self) -> float:
        self.append(self.rng.random())
        return self[-1]


class Window:
    """One iteration: m drafts, and their numbers."""

    def __init__(self, encoder, step, draws: list[float]):
        self.encoder = encoder
        self.drafts = [int(token) for token in step.proposal.tokens]  # [m]
        self.p_rows = np.asarray(step.proposal.p, float)  # [m, n_vocab]
        self.q_rows = np.asarray(step.q, float)  # [m + 1, n_vocab]
        m = len(self.drafts)
        self.p = self.p_rows[range(m), self.drafts]  # [m]
        self.q = self.q_rows[range(m), self.drafts]  # [m]
        self.u = np.array(draws[m:-1])  # [number of tests]: the drafter drew m before, and the last draw is the token's
        self.token = int(step.tokens[-1])  # resampled or bonus
        self.n_accepted = len(step.tokens) - 1
        self.n_token_by_token = [*(self.u * self.p[: len(self.u)] < self.q[: len(self.u)]), False].index(False)

    def quoted(self, token: int) -> str:
        """A token as Markdown code, with the blank that belongs to it: ` which`."""
        return f"`{self.encoder.decode([token])}`".replace("\n", "\\n")

    def tests(self) -> str:
        cells = []
        for draft, p, q, u in zip(self.drafts, self.p, self.q, self.u, strict=False):
            verdict = "accepted" if u * p < q else "rejected"
            cells.append([self.quoted(draft), f"{p:.3f}", f"{q:.3f}", f"{min(1, q / p):.2f}", f"{u:.2f}", verdict])
        cells += [[self.quoted(draft), "", "", "", "", "not tested"] for draft in self.drafts[len(cells) :]]
        return markdown(["draft", "p", "q", "min(1, q / p)", "u", ""], cells)

    def residual(self) -> str:
        p, q = self.p_rows[self.n_accepted], self.q_rows[self.n_accepted]  # [n_vocab] each
        left = np.maximum(0, q - p)  # [n_vocab]
        cells = []
        for token in np.argsort(-np.maximum(p, q), kind="stable")[:N_SHOWN].tolist():
            numbers = (p[token], q[token], left[token], left[token] / left.sum())
            cells.append([self.quoted(token), *(f"{number:.3f}" for number in numbers)])
        share = left[self.token] / left.sum()
        table = markdown(["token", "p", "q", "max(0, q - p)", "of the sum"], cells)
        return f"{table}\n\nThe sum is {left.sum():.3f}; {self.quoted(self.token)} had a share of {share:.3f}."

    def block(self) -> str:
        cells = []
        w = 1.0
        for i, draft in enumerate(self.drafts):
            w = h = min(1.0, w * self.q[i] / self.p[i])
            if i + 1 < len(self.drafts):
                s = np.maximum(0, w * self.q_rows[i + 1] - self.p_rows[i + 1]).sum()
                h = s / (s + 1 - w) if s + 1 > w else 1.0
            verdict = ("passes" if self.u[i] < h else "fails") + (", kept" if i < self.n_accepted else ", dropped")
            numbers = [f"{self.p[i]:.3f}", f"{self.q[i]:.3f}", f"{w:.2f}", f"{h:.2f}", f"{self.u[i]:.2f}"]
            cells.append([self.quoted(draft), *numbers, verdict])
        return markdown(["draft", "p", "q", "w", "h", "u", ""], cells)


def markdown(header: list[str], cells: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *cells])


def windows(accept: str) -> list[Window]:
    """The iterations of a speculative run with this rule."""
    sizes = {"draft_model_size": "tiny-draft", "target_model_size": "tiny-target", "models_dir": str(runs.MODELS)}
    session = runs.load(SimpleNamespace(**sizes, dtype="float32", draft_dtype="float32"), ["model"])
    draft_model, target = runs.models_of(session, TEMPERATURE)
    rng = Draws()
    rng.rng = np.random.default_rng(SEED)
    found = []
    draft = model_drafter(draft_model, rng)
    for step in speculative_sampling(session.encode(PROMPT), draft, target, N, K, rng, runs.rule(accept)):
        found.append(Window(session.encoder, step, [*rng]))
        rng.clear()
    return found


def main(argv: list[str]) -> None:
    token = windows("token")
    whole = next(w for w in token if w.n_accepted == K)
    rejected = next(w for w in token if 0 < w.n_accepted < len(w.drafts))
    gained = next(w for w in windows("block") if w.n_token_by_token < w.n_accepted < K)
    bonus = f"The bonus token {whole.quoted(whole.token)} had probability {whole.q_rows[-1][whole.token]:.3f}."
    print("\n\n".join([whole.tests(), bonus, rejected.tests(), rejected.residual(), gained.block()]))
