"""What happened in a run: a recorder that stands around a decoder and its models, and the figures made of its notes."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import mean, median

import numpy as np

from speculative.engines.cached import common_prefix
from speculative.lookahead import IN_STEP
from speculative.measure.analysis import (
    acceptance_chance,
    best_k,
    chen_speedup,
    leviathan_tokens,
    line_through,
    matching_chance,
)
from speculative.sampling import Step

K_MAX = 16  # the largest K that is considered for the best

# The keys of predictions(), which are there also where nothing was measured.
PREDICTED = ("t_target", "t_draft", "c", "beta", "mean_beta", "largest_beta", "best_K")
PREDICTED += ("predicted_chen", "predicted_leviathan", "predicted_best", "predicted_if")


@dataclass
class Iteration:
    """One step of a decoder, and what it took. Times in seconds."""

    step: Step | None = None
    drafting: float = 0.0  # in the draft
    scoring: float = 0.0  # in the target
    seconds: float = 0.0  # in all
    draft_prefill: bool = False  # whether the draft also read text that was new to it: kept out of t_draft then
    prefill: bool = False  # likewise the target, and t_target
    alpha: list[float] = field(default_factory=list)  # Σ min(p, q) where a draft met the accept rule, in order
    matching: list[float] = field(default_factory=list)  # Σ p q, likewise


class Recorder:
    """Notes every step of a decoder:

        recorder = Recorder()
        decoder = speculative_sampling(x, recorder.draft(draft), recorder.target(target_model), N, K, rng)
        for step in recorder.watch(decoder):
            ...

    Only the decoder's own time is counted, neither what is done with a step nor the recorder's bookkeeping; and p and q
    are held for no longer than that step.
    """

    def __init__(self, lenience: float = 1.0, clock: Callable[[], float] = time.perf_counter):
        """lenience: as the decoder's; below 1, α is Σ min(p, q / lenience), the chance that a draft passes then."""
        self.lenience, self.clock = lenience, clock
        self.samples = []  # a list of Iterations for each decoder that was watched
        self.seconds = 0.0
        self.now = Iteration()
        self.p, self.q = [], []
        self.seen = self.drafted = np.empty(0, int)  # the text of the target's last call, and what the draft has read

    def draft(self, draft: Callable) -> Callable:
        def recorded(x, k):
            start = self.clock()
            tokens, self.p = draft(x, k)
            self.now.drafting = self.clock() - start
            self.now.draft_prefill = len(x) - common_prefix(self.drafted, x) > IN_STEP
            self.drafted = np.append(x, tokens).astype(int)
            return tokens, self.p

        return recorded

    def target(self, target_model: Callable) -> Callable:
        def recorded(x, n_last=1):
            start = self.clock()
            self.q = target_model(x, n_last)  # [n_last, n_vocab]
            self.now.scoring = self.clock() - start
            self.now.prefill = len(x) - common_prefix(self.seen, x) > n_last
            self.seen = np.asarray(x)
            return self.q

        return recorded

    def watch(self, decoder: Iterator[Step]) -> Iterator[Step]:
        self.samples.append([])
        while True:
            self.now, self.p, self.q = Iteration(), [], []
            start = self.clock()
            step = next(decoder, None)
            self.now.seconds = self.clock() - start
            self.seconds += self.now.seconds
            if step is None:
                return
            self.now.step = step
            n_met = min(len(step.tokens), step.drafted)  # none after the first that is rejected, or after a stop
            for p, q in list(zip(self.p, self.q, strict=False))[:n_met]:  # [n_vocab] each
                self.now.alpha.append(float(acceptance_chance(p, q / self.lenience)))
                self.now.matching.append(float(matching_chance(p, q)))
            self.samples[-1].append(self.now)
            yield step

    def watch_batch(self, decoder: Iterator[list[Step | None]], n_batch: int) -> Iterator[list[Step | None]]:
        """The same for prompts that are decoded together: a sample for each.

        Each prompt's iteration has the time of the whole call, so these seconds do not add up to the run's.
        """
        samples = [[] for _ in range(n_batch)]
        self.samples += samples
        while True:
            start = self.clock()
            steps = next(decoder, None)
            seconds = self.clock() - start
            self.seconds += seconds
            if steps is None:
                return
            for sample, step in zip(samples, steps, strict=True):
                if step:
                    sample.append(Iteration(step, seconds=seconds))
            yield steps

    @property
    def iterations(self) -> list[Iteration]:
        return [iteration for sample in self.samples for iteration in sample]

    @property
    def n_tokens(self) -> int:
        return sum(len(i.step.tokens) for i in self.iterations)

    def window_seconds(self, at_least: int = 1) -> dict[int, float]:
        """t_target, {rows: median seconds}, where at_least so many calls read nothing but these rows."""
        typical = [(i.step.drafted + 1, i.scoring) for i in self.iterations if not i.prefill]
        return {rows: s for rows, (n, s) in medians(typical).items() if n >= at_least}

    def seconds_per_draft(self) -> float | None:
        """t_draft. Calls that propose nothing are part of the price of those that do."""
        typical = [(i.step.drafted, i.drafting) for i in self.iterations if not i.draft_prefill]
        return share(sum(n * s for n, s in medians(typical).values()), sum(drafted for drafted, _ in typical))

    def prefill_seconds(self) -> float:
        """What reading the prompt took, beyond what the same calls take otherwise."""
        t_target, t_draft = self.window_seconds(), self.seconds_per_draft() or 0.0
        scoring = [i.scoring - t_target.get(i.step.drafted + 1, 0.0) for i in self.iterations if i.prefill]
        drafting = [i.drafting - i.step.drafted * t_draft for i in self.iterations if i.draft_prefill]
        return sum(max(0.0, seconds) for seconds in scoring + drafting)


def medians(pairs: list[tuple[int, float]]) -> dict[int, tuple[int, float]]:
    """(key, seconds) pairs -> {key: (how many, their median)}"""
    by_key = {}
    for key, seconds in sorted(pairs):
        by_key.setdefault(key, []).append(seconds)
    return {key: (len(seconds), median(seconds)) for key, seconds in by_key.items()}


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def average(values) -> float | None:
    values = list(values)
    return mean(values) if values else None


def figures(plain: Recorder, speculative: Recorder) -> dict:
    """All that is known of two decoders' runs over the same prompt, ready for JSON; None where nothing was measured.

    What depends on K is an average over the iterations, so the figures also hold where K changes or a window is cut.
    """
    steps = [i.step for i in speculative.iterations]
    n_tokens, drafted = speculative.n_tokens, sum(step.drafted for step in steps)
    met = Counter(j for i in speculative.iterations for j in range(len(i.alpha)))
    accepted = Counter(j for step in steps for j in range(step.accepted))
    counted = {
        "tokens": n_tokens,
        "iterations": len(steps),
        "drafted": drafted,
        "accepted": sum(step.accepted for step in steps),
        "usual_K": Counter(step.drafted for step in steps).most_common(1)[0][0] if steps else None,
        "r": share(n_tokens, drafted + len(steps)),
        "tokens_per_iteration": share(n_tokens, len(steps)),
        "tokens_per_iteration_histogram": dict(sorted(Counter(len(step.tokens) for step in steps).items())),
        "met_by_position": [met[j] for j in range(len(met))],
        "accepted_by_position": [accepted[j] for j in range(len(met))],
        "alpha": average(a for i in speculative.iterations for a in i.alpha),
        "alpha_by_position": [
            average(i.alpha[j] for i in speculative.iterations if j < len(i.alpha)) for j in range(len(met))
        ],
        "matching": average(a for i in speculative.iterations for a in i.matching),
    }
    return counted | times(plain, speculative) | predictions(plain, speculative, counted)


def times(plain: Recorder, speculative: Recorder) -> dict:
    """Where the seconds went, and the speedup that was measured, with the reading of the prompt and without."""
    drafting = sum(i.drafting for i in speculative.iterations)
    scoring = sum(i.scoring for i in speculative.iterations)
    plain_decoding, decoding = (run.seconds - run.prefill_seconds() for run in (plain, speculative))
    n_plain, n_tokens = plain.n_tokens, speculative.n_tokens  # not the same where a stop text was met
    return {
        "seconds": {
            "autoregressive": plain.seconds,
            "speculative": speculative.seconds,
            "drafting": drafting,
            "scoring": scoring,
            "rest": speculative.seconds - drafting - scoring,
            "prefill": speculative.prefill_seconds(),
        },
        "speedup": share(plain.seconds * n_tokens, speculative.seconds * n_plain),
        "speedup_without_prefill": share(plain_decoding * n_tokens, decoding * n_plain),
    }


def predictions(plain: Recorder, speculative: Recorder, counted: dict) -> dict:
    """What the formulas make of the measured costs and acceptance: speedups, and the K that would have been best."""
    t_target = plain.window_seconds().get(1)
    t_window = speculative.window_seconds(at_least=3) or speculative.window_seconds()
    t_draft = speculative.seconds_per_draft()
    found = dict.fromkeys(PREDICTED)
    if not (t_target and t_window) or (counted["drafted"] and t_draft is None):
        return found  # so short a run that there was no call but the first

    c = (t_draft or 0.0) / t_target
    beta = line_through({1: 1.0} | {rows: seconds / t_target for rows, seconds in t_window.items() if rows > 1})
    tokens, windows = counted["tokens_per_iteration"], [i.step.drafted for i in speculative.iterations]
    K, mean_beta = mean(windows), mean(beta(m + 1) for m in windows)
    found |= {
        "t_target": t_target,
        "t_draft": t_draft,
        "c": None if t_draft is None else c,
        "beta": {rows: seconds / t_target for rows, seconds in t_window.items()},
        "mean_beta": mean_beta,
        "predicted_chen": chen_speedup(counted["r"], K, c, mean_beta),
    }
    if (alpha := counted["alpha"]) is not None:
        best, best_speedup = best_k(acceptance(counted), c, beta)
        found |= {
            "predicted_leviathan": mean(leviathan_tokens(alpha, m) for m in windows) / (K * c + mean_beta),
            "largest_beta": tokens - K * c,  # with the tokens that were measured, in place of those that α gives
            "best_K": best,
            "predicted_best": best_speedup,
            "predicted_if": {  # what each obstacle costs: the speedup if it were gone
                "every draft were accepted": (K + 1) / (K * c + mean_beta),
                "drafting were free": tokens / mean_beta,
                "a window cost no more than a row": tokens / (K * c + 1),
            },
        }
    return found


def acceptance(counted: dict, enough: int = 20) -> list[float]:  # -> [K_MAX]
    """The chance of passing at each position: measured where it was met often enough, else α."""
    measured = zip(counted["accepted_by_position"], counted["met_by_position"], strict=True)
    chances = [a / n if n >= enough else counted["alpha"] for a, n in measured][:K_MAX]
    return chances + [counted["alpha"]] * (K_MAX - len(chances))
