"""The parts that the benchmarks share: their flags, the session that decodes, and the file of results."""

import contextlib
from pathlib import Path

from speculative import decoding, drafters, load_pair, trees
from speculative.engines import formats
from speculative.measure.machine import machine
from speculative.options import BUNDLED
from speculative.session import Session
from speculative.support import arguments as values
from speculative.support import files
from speculative.support.errors import UserError

MODELS = Path(BUNDLED)
PROMPTS = {"prose": MODELS / "tiny-target" / "prompts.jsonl", "code": Path(__file__).parent / "prompts" / "code.jsonl"}

count = values.argument(values.integer(1))


class Parser(values.Parser):
    """A parser with the arguments that several benchmarks share."""

    def add_pair(self):
        self.add_argument("--draft_model_size", default="tiny-draft")
        self.add_argument("--target_model_size", default="tiny-target")
        self.add_argument("--models_dir", default=str(MODELS))
        self.add_argument("--source", type=values.argument(values.source), default="openai", help="as of main.py")

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
    K = decoding.parse_K(text)
    return K if isinstance(K, int) else text


def check_n_tokens(o):
    """Raises UserError if the first window could be the whole run."""
    fewest = 2 + max(K if isinstance(K, int) else 1 + K.count(",") for K in o.K)  # auto begins with 1
    if o.n_tokens < fewest:
        raise UserError(f"--n_tokens must be at least {fewest}: only what follows the first window is timed")


def load(o, names=("model",), prompts=(), **flags) -> Session:
    """A session of the models, for the drafters of these names.

    Raises UserError, also where one of the prompts does not fit with o.n_tokens more.
    """
    # First one that needs the draft model, where there is one: the draft model is loaded in its format then.
    first, *others = sorted(names, key=lambda name: not drafters.needs(name, "draft"))
    given = ["draft_model_size", "target_model_size", "models_dir", "source", "dtype"]
    if drafters.needs(first, "draft"):
        given.append("draft_dtype")
    session = load_pair(**{name: getattr(o, name) for name in given}, drafter=first, **flags)
    for name in others:
        session.changed(drafter=name)  # loads what it needs
    for prompt in prompts:
        session.input_ids(prompt, o.n_tokens)
    return session


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
