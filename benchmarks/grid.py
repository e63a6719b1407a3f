"""A grid of settings, measured: every drafter with every K, at each temperature, after each prompt.

It is measured --repeats times, each time in another random order, so that a machine that slows down for a while does so
for all alike. The first run of each kind does not count. Times are of decoding alone, without the first step, which
holds the prefill. The commands that measure a grid are presets of it: sweep, drafters, trees, levels and paper.
"""

import contextlib
import json
import os
import time
from dataclasses import astuple
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from tqdm import tqdm

from benchmarks.common import PROMPTS, Parser, check_n_tokens, count, load, lookahead, setting, writing
from speculative import drafters
from speculative.lookahead import Auto
from speculative.measure.machine import machine
from speculative.measure.record import Counted, Iteration
from speculative.support import arguments as values
from speculative.support import texts

BASELINE = "autoregressive"  # where the name of a drafter stands; its K is 0


class Setting(NamedTuple):
    """The key under which a measurement is kept. All fields but the first three are its kind."""

    on: str  # models, number of tokens, machine
    repeat: int
    prompt: str
    drafter: str
    temperature: float
    top_p: float | None
    domain: str
    K: int | str
    lenience: float | None = None
    accept: str = "token"


def add_grid(parser):
    """The arguments that say what is measured."""
    parser.add_models()
    add = parser.add_argument
    add("--prompts", nargs="+", help="files, .txt (a prompt a line) or .jsonl (objects with prompt) [prose and code]")
    add("--n_prompts", type=count, default=4, help="how many of each file at most")
    add("--n_tokens", type=count, default=64, help="how many to decode from each prompt")
    add("--settings", nargs="+", type=values.argument(setting), help="temperature or temperature:top_p")
    add("--drafters", nargs="+", type=drafters.drafter, default=["model"])
    add("--K", nargs="+", type=values.argument(lookahead), help="lookaheads: whole numbers, auto, or trees: 2,2,1")
    add("--repeats", type=count, default=3)
    parser.set_defaults(lenience=[None], accept=["token"])


def options(doc, argv=None, **defaults):
    """The options of a command that measures a grid, checked. Raises UserError.

    argv: the words of its command line, the process's own where it is None.
    """
    parser = Parser(doc)
    add_grid(parser)
    results = "a folder for the results and each measurement, from which an interrupted run goes on"
    parser.add_argument("--out", type=values.argument(values.path), help=results)
    parser.set_defaults(**defaults)
    o = parser.parse_args(argv)
    read(o)
    return o


def read(o):
    """Reads the prompts, so that o.prompts is {domain: texts}. Raises UserError."""
    paths = {Path(path).stem: path for path in o.prompts} if o.prompts else PROMPTS
    o.prompts = {domain: texts.read_prompts(path, o.n_prompts) for domain, path in paths.items()}
    check_n_tokens(o)


def loaded(o):
    """The session that decodes the grid. Raises UserError."""
    return load(o, o.drafters, chain(*o.prompts.values()))


def decode(session, s, N, clock=time.perf_counter):
    """N tokens of a Setting, from empty caches -> [Iteration, ...]"""
    flags = {"temperature": s.temperature, "top_p": s.top_p, "seed": s.repeat, "lenience": s.lenience}
    flags["accept"] = s.accept
    if s.K == "tree":
        flags |= {"drafter": s.drafter, "tree": "auto"}
    elif "," in str(s.K):
        flags |= {"drafter": s.drafter, "tree": s.K}
    elif s.K:
        flags |= {"drafter": s.drafter, "K": s.K}
    session = session.changed(**flags)
    session.ready([s.prompt], N)
    recorder = session.recorder(details=False)
    recorder.clock = clock
    for K in (session.pair.lookahead, *session.pair.inner_K):
        if isinstance(K, Auto):
            K.clock = clock
    decode_fn = session.pair.speculative if s.K else session.pair.autoregressive
    for _ in session.texts(decode_fn, [s.prompt], N, sample=crc32(s.prompt.encode()), recorder=recorder):
        pass
    return recorder.iterations


def measured_on(o, *names):
    """The key of a measurement: these options and the machine. With others it is made anew."""
    return " ".join(map(str, [*(getattr(o, name) for name in names), *machine().values()]))


def all_settings(o):
    """The settings in the order in which they are measured, a random one for each repeat."""
    on = measured_on(o, "models_dir", "target_model_size", "dtype", "draft_model_size", "draft_dtype", "n_tokens")
    prompts = [(prompt, domain) for domain, prompts in o.prompts.items() for prompt in prompts]
    # A K may have fewer numbers than a drafter has levels, and no more.
    kinds = product(o.drafters, o.K, o.lenience, o.accept)
    kinds = [kind for kind in kinds if str(kind[1]).count("/") <= kind[0].count("/")]
    once = [*product([(BASELINE, 0, None, "token"), *kinds], o.settings, prompts)]
    for repeat in range(o.repeats):
        for i in np.random.default_rng(repeat).permutation(len(once)):
            (drafter, K, lenience, accept), (temperature, top_p), (prompt, domain) = once[i]
            yield Setting(on, repeat, prompt, drafter, temperature, top_p, domain, K, lenience, accept)


def measure(o, run=None):
    """{Setting: [Iteration, ...]} of the whole grid. What the folder o.out already holds is not measured again.

    run(s, N) -> [Iteration, ...]. Where it is None the models are loaded, if there is something to measure.
    """
    path = Path(o.out, "measurements.jsonl") if o.out else Path(os.devnull)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as f:
            done = read_measurements(path)
            settings = [*all_settings(o)]
            todo = [s for s in settings if s not in done]
            if todo and not run:
                run = partial(decode, loaded(o))
            for s in {(s.drafter, s.K, s.lenience, s.accept): s for s in todo}.values():
                run(s, min(o.n_tokens, 24))  # not counted
            for s in tqdm(todo, unit="run", disable=None):
                done[s] = run(s, o.n_tokens)
                f.write(b"\n" + json.dumps([s, [*map(astuple, done[s])]]).encode())
                f.flush()
    return {s: done[s] for s in settings}


def read_measurements(path):
    """{Setting: [Iteration, ...]} of a file."""
    return {Setting(*s): [*map(iteration_of, run)] for s, run in read_lines(path)}


def read_lines(path):
    """The lines of a .jsonl, read. One that cannot be read, such as one that was cut off, is skipped."""
    for line in Path(path).read_bytes().splitlines() if Path(path).exists() else []:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def iteration_of(fields):
    """An Iteration from what a file has of it."""
    step, *rest = fields
    iteration = Iteration(Counted(*step), *rest)
    iteration.levels = {name: [*map(iteration_of, each)] for name, each in iteration.levels.items()}
    return iteration
