"""What the benchmarks share: flags, the pair of models, the grid of settings that is measured, turns, and tables.

A grid is every drafter with every K, each setting and each prompt. It is measured --repeats times, each time in another
random order, so that a machine that slows down for a while does so for all alike. The first run of each kind does not
count. Times are of decoding alone, without the first step, which holds the prefill.
"""

import contextlib
import json
import os
from dataclasses import astuple, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from tqdm import tqdm

from plumbing import arguments as values
from plumbing import files, texts
from plumbing.errors import UserError
from speculative import decoding, drafters, load_pair, trees
from speculative.accept import TOKEN
from speculative.decoding import lookaheads
from speculative.engines import formats
from speculative.filters import Filters
from speculative.measure.machine import machine
from speculative.measure.recorder import Counted, Iteration, Recorder

MODELS = Path(__file__).parents[1] / "models"
PROMPTS = {"prose": MODELS / "tiny-target" / "prompts.jsonl", "code": Path(__file__).parent / "prompts" / "code.jsonl"}
BASELINE = "autoregressive"  # where the name of a drafter stands; its K is 0

count = values.argument(values.integer(1))


class Parser(values.Parser):
    """A parser with the arguments that several benchmarks share."""

    def add_pair(self):
        self.add_argument("--draft_model_size", default="tiny-draft")
        self.add_argument("--target_model_size", default="tiny-target")
        self.add_argument("--models_dir", default=str(MODELS))

    def add_models(self):
        self.add_pair()
        dtypes = formats.FORMATS
        self.add_argument("--dtype", default="float32", choices=dtypes, help="weight format of the target model")
        self.add_argument("--draft_dtype", default="int8", choices=dtypes, help="weight format of the draft model")

    def add_json(self):
        self.add_argument("--json", type=output, help="a file for the results")


def output(text):
    """The path of a file that can be written. Raises UserError, argparse.ArgumentTypeError."""
    path = values.argument(values.path)(text)
    files.check_writable(path)
    return path


def setting(text):
    """ "0.5" -> (0.5, None); "1:0.9" -> (1.0, 0.9), the temperature and top-p."""
    temperature, colon, top_p = text.partition(":")
    return values.temperature(temperature), values.share(top_p) if colon else None


def lookahead(text):
    """ "4" -> 4. As they are stay "auto", "16/4" (levels), "tree" (one that chooses its shape) and "2,2,1" (a tree)."""
    if text == "tree" or ("," in text and trees.widths(text)):
        return text
    K = decoding.K(text)
    return K if isinstance(K, int) else text


def grid_options(doc, argv=None, **defaults):
    """The options of a command that measures a grid, checked; prompts is {domain: texts}. Raises UserError.

    argv: the words of its command line, the process's own where it is None.
    """
    arguments = Parser(doc)
    arguments.add_models()
    add = arguments.add_argument
    add("--prompts", nargs="+", help="files, .txt (a prompt a line) or .jsonl (objects with prompt) [prose and code]")
    add("--n_prompts", type=count, default=4, help="how many of each file at most")
    add("--n_tokens", type=count, default=64, help="how many to decode from each prompt")
    add("--settings", nargs="+", type=values.argument(setting), help="temperature or temperature:top_p")
    add("--drafters", nargs="+", type=drafters.drafter, default=["model"])
    add("--K", nargs="+", type=values.argument(lookahead), help="lookaheads: whole numbers, auto, or trees: 2,2,1")
    add("--repeats", type=count, default=3)
    results = "a folder for the results and each measurement, from which an interrupted run goes on"
    add("--out", type=values.argument(values.path), help=results)
    arguments.set_defaults(**defaults)
    o = arguments.parse_args(argv)
    paths = {Path(path).stem: path for path in o.prompts} if o.prompts else PROMPTS
    o.prompts = {domain: texts.read_prompts(path, o.n_prompts) for domain, path in paths.items()}
    check_n_tokens(o)
    return o


def check_n_tokens(o):
    """Raises UserError if the first window could be the whole run."""
    fewest = 2 + max(K if isinstance(K, int) else 1 + K.count(",") for K in o.K)  # auto begins with 1
    if o.n_tokens < fewest:
        raise UserError(f"--n_tokens must be at least {fewest}: only what follows the first window is timed")


class Setting(NamedTuple):
    """What was measured: the key under which a measurement is kept. All but the first three fields are its kind."""

    on: str  # models, number of tokens, machine
    repeat: int
    prompt: str
    drafter: str
    temperature: float
    top_p: float | None
    domain: str
    K: int | str


def load(o, **more):
    """A session of the models, loaded as main.py loads them. Raises UserError."""
    options = {"drafter": "model"} | more
    names = ["draft_model_size", "target_model_size", "models_dir", "dtype"]
    if drafters.needs(options["drafter"], "draft"):
        names.append("draft_dtype")
    return load_pair(**{name: getattr(o, name) for name in names} | options)


class Pair:
    """A loaded pair, and the prompts of the options, by their text."""

    def __init__(self, o):
        prompts = [prompt for prompts in o.prompts.values() for prompt in prompts]
        # First one that needs the draft model, where there is one: it is loaded in its format then.
        names = sorted(getattr(o, "drafters", ["model"]), key=lambda name: not drafters.needs(name, "draft"))
        first, *others = names
        session = load(o, drafter=first)
        for drafter in others:
            session.changed(drafter=drafter)  # loads what it needs
        self.ids = {prompt: session.input_ids(prompt, o.n_tokens) for prompt in prompts}
        models = {need: model for need, (_, model) in session.kept.items()}
        self.loaded = replace(session.pair, models=models)
        self.encoder = self.loaded.encoder
        self.target = self.loaded.target
        self.draft = self.loaded.models.get("draft")

    def sample_with(self, **filters):
        """Sets temperature and top_p of both models."""
        self.loaded = replace(self.loaded, filters=Filters(**filters))
        self.set_filters()

    def set_filters(self):
        """Lets the models, which keep their caches, sample as the pair says."""
        for need, model in self.loaded.models.items():
            model.to_probs = self.loaded.filters if need == "target" else self.loaded.draft_filters

    def decode(self, s, N, rule=TOKEN):
        """N tokens of a Setting, from empty caches -> [Iteration, ...]."""
        filters = Filters(s.temperature, None, s.top_p)
        drafter = self.loaded.drafter if s.K == 0 else s.drafter
        lookahead, inner_K = chosen(s.K, drafter)
        self.loaded = replace(
            self.loaded,
            filters=filters,
            drafter=drafter,
            lookahead=lookahead,
            inner_K=inner_K,
            accept=rule,
        )
        self.set_filters()
        self.loaded.ready([self.ids[s.prompt]], N)
        recorder = Recorder(rule)
        rng = np.random.default_rng([s.repeat, crc32(s.prompt.encode())])
        decode = self.loaded.autoregressive if s.K == 0 else self.loaded.speculative
        list(recorder.watch(decode(self.ids[s.prompt], N, rng, recorder)))
        return recorder.iterations


def chosen(K, drafter):
    """The lookaheads of a Setting's K."""
    if K == "tree":
        return lookaheads(4, "auto", drafter)
    if "," in str(K):
        return lookaheads(4, trees.widths(K), drafter)
    return lookaheads(decoding.K(str(K or 1)), None, drafter)


def measured_on(o, *names):
    """What a measurement is kept by: these options and the machine. With others it is made anew."""
    return " ".join(map(str, [*(getattr(o, name) for name in names), *machine().values()]))


def all_settings(o):
    """The settings in the order in which they are measured, a random one for each repeat."""
    names = ("models_dir", "target_model_size", "dtype", "draft_model_size", "draft_dtype", "n_tokens")
    on = measured_on(o, *names)
    prompts = [(prompt, domain) for domain, prompts in o.prompts.items() for prompt in prompts]
    # A K may have fewer numbers than a drafter has levels, and no more.
    kinds = [(drafter, K) for drafter, K in product(o.drafters, o.K) if str(K).count("/") <= drafter.count("/")]
    once = [*product([(BASELINE, 0), *kinds], o.settings, prompts)]
    for repeat in range(o.repeats):
        for i in np.random.default_rng(repeat).permutation(len(once)):
            (drafter, K), setting, (prompt, domain) = once[i]
            yield Setting(on, repeat, prompt, drafter, *setting, domain, K)


def measure(o, pair=None):
    """{Setting: [Iteration, ...]} of the whole grid. What the folder o.out already holds is not measured again."""
    path = Path(o.out, "measurements.jsonl") if o.out else Path(os.devnull)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as f:
            done = read_measurements(path)
            settings = [*all_settings(o)]
            todo = [s for s in settings if s not in done]
            pair = pair or (Pair(o) if todo else None)
            for s in {(s.drafter, s.K): s for s in todo}.values():
                pair.decode(s, min(o.n_tokens, 24))  # not counted
            for s in tqdm(todo, unit="run", disable=None):
                done[s] = pair.decode(s, o.n_tokens)
                f.write(b"\n" + json.dumps([s, [*map(astuple, done[s])]]).encode())
                f.flush()
    return {s: done[s] for s in settings}


def read_measurements(path):
    """{Setting: [Iteration, ...]} of a file."""
    return {Setting(*s): [*map(iteration_of, run)] for s, run in read_lines(path)}


def read_lines(path):
    """What the lines of a .jsonl hold. One that cannot be read, such as one that was cut off, is skipped."""
    for line in Path(path).read_bytes().splitlines() if Path(path).exists() else []:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def iteration_of(fields):
    """An Iteration from what a file has of it."""
    step, *rest = fields
    iteration = Iteration(Counted(*step), *rest)
    iteration.levels = {name: [*map(iteration_of, each)] for name, each in iteration.levels.items()}
    return iteration


@contextlib.contextmanager
def writing(path):
    """Raises UserError where something cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}") from None


def write_results(path, o, **results):
    if path:
        files.write_json(path, {"options": vars(o), "machine": machine()} | results)
