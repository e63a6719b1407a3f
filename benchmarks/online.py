"""The gain of a draft that learns while it serves, on a stream of prompts that changes its domain in the middle.

    python -m benchmarks.online FIRST SECOND [--n_texts 320]

FIRST and SECOND are files of prompts, .jsonl (objects with "prompt") or any other (a prompt a line). The first half of
the stream is drawn from one, the second half from the other. The same draft serves it in three forms: frozen; online,
as python -m training online does; and distilled beforehand on the stream's prompts, in as many steps as the online one
takes in all, on text that the target wrote with other random numbers. Then prompts of the first domain come again, and
no draft learns any more: has it forgotten anything?
"""

import time
from argparse import Namespace
from functools import partial

import numpy as np

from benchmarks.common import PROMPTS, Parser, count, load
from benchmarks.tables import table
from speculative.engines.jax.model import keep_compiled
from speculative.support.errors import UserError, guarded
from speculative.support.texts import read_prompts
from training.common import add_recipe, load_on_device, want
from training.online import RATE, Learner, acceptance_rate, add_online, numpy_model, serve

COLUMNS = """draft r_first_domain=first:.3f second=second:.3f its_second_half=end:.3f the_first_again=again:.3f
    seconds_decoding=decoding:.1f learning=learning:.1f"""


def draw_prompts(path, n, n_prompt, session, rng):  # -> [n][n_ids]
    """n of the prompts of a file, each cut to its first n_prompt tokens; all of them before one comes twice."""
    ids = [session.encode(prompt)[:n_prompt] for prompt in read_prompts(path)]
    order = np.concatenate([rng.permutation(len(ids)) for _ in range(-(-n // len(ids)))])
    return [ids[i] for i in order[:n]]


def but(o, **changes):
    """The same options, some of them changed."""
    return Namespace(**vars(o) | changes)


class Experiment:
    """The models, the stream, and how they serve it."""

    def __init__(self, o):
        keep_compiled()
        wanted = want("draft", o.draft_model_size, o)
        self.o = o = but(o, rate=o.rate or RATE / wanted.hparams["n_embd"])
        session = load(o, ["prompt_lookup"], temperature=o.temperature, engine="numpy")
        self.target = session.pair.target
        self.draft = load_on_device(wanted, o)
        how = {"temperature": o.temperature, "dtype": o.draft_dtype}
        self.to_model = partial(numpy_model, hparams=wanted.hparams, **how)
        rng = np.random.default_rng(o.seed)
        half = o.n_texts // 2
        first, second = (draw_prompts(path, half + o.n_again, o.n_prompt, session, rng) for path in (o.first, o.second))
        self.stream = first[:half] + second[:half]
        self.again = first[half:]
        warm_up = self.learner(1)
        self.serve(self.again[:1], self.draft.params, 0, but(o, every=1, n_steps=1), warm_up)

    def learner(self, n_buffer):
        return Learner(self.draft, self.o.n_prompt + self.o.n_tokens, but(self.o, n_buffer=n_buffer))

    def serve(self, prompts, params, number, o=None, learner=None):
        """number: makes the random numbers of this pass other than those of the others."""
        rngs = (np.random.default_rng([self.o.seed, number, i]) for i in range(len(prompts)))
        draft = self.to_model(params)
        return list(serve(prompts, rngs, draft, self.target, o or self.o, learner, self.to_model))

    def distilled(self):
        """-> parameters of a draft that learned beforehand from the stream, and the seconds that took."""
        learner = self.learner(len(self.stream))
        self.serve(self.stream, self.draft.params, 2, but(self.o, every=len(self.stream) + 1), learner)
        start = time.perf_counter()
        n_updates = len(self.stream) // self.o.every
        learner.learn(np.random.default_rng([self.o.seed, 3]), n_updates * self.o.n_steps)
        return learner.params, time.perf_counter() - start

    def rows(self):
        """For COLUMNS."""
        frozen = self.draft.params
        online = self.learner(self.o.n_buffer)
        params, seconds = self.distilled()
        served = self.serve(self.stream, frozen, 4, None, online)
        learning = sum(one.learning for one in served)
        return [
            row_of("frozen", self.serve(self.stream, frozen, 4), self.serve(self.again, frozen, 5), 0.0),
            row_of("online", served, self.serve(self.again, online.params, 5), learning),
            row_of("distilled", self.serve(self.stream, params, 4), self.serve(self.again, params, 5), seconds),
        ]


def row_of(draft, served, again, learning):
    half = len(served) // 2
    parts = {"first": served[:half], "second": served[half:], "end": served[-half // 2 :], "again": again}
    row = {"draft": draft, "learning": learning, "decoding": sum(one.seconds for one in served)}
    return row | {part: acceptance_rate(texts) for part, texts in parts.items()}


def main(argv=None):
    parser = Parser(__doc__)
    add = parser.add_argument
    add("first", nargs="?", default=PROMPTS["prose"], metavar="FIRST", help="[the bundled prompts, prose]")
    add("second", nargs="?", default=PROMPTS["code"], metavar="SECOND", help="[the bundled prompts, code]")
    parser.add_models()
    add_online(parser)
    add_recipe(parser, RATE, n_seq=False)
    add("--n_texts", type=count, default=320, help="texts in the stream")
    add("--n_again", type=count, default=48, help="texts of the first domain again, at the end")
    parser.set_defaults(seed=1)
    o = parser.parse_args(argv)
    if o.n_texts < 4 * o.every:
        raise UserError(f"--n_texts must be at least {4 * o.every}: the draft learns after every {o.every} texts")
    print(table(Experiment(o).rows(), COLUMNS))


if __name__ == "__main__":
    guarded(main)
