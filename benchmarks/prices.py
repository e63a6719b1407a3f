"""Speedups without a clock: every call of a model is priced by the tokens that it reads, with a table of a machine.

    python -m benchmarks prices
    python -m benchmarks prices --dtype int8 --costs emerald_rapids --settings model:4 prompt_lookup+model:auto

Times on a busy or virtual machine say little of settings that differ by a few percent; prices are the same every time,
also for a machine that is not at hand. K auto sees them in place of its clock. The bundled pair decodes, and the prices
are those of 1558M and 124M (in int8): stand-ins of that size accept the same drafts. A setting is DRAFTER:K. Drafters
other than models and copies cost nothing. A speedup is the mean over prompts, with the reading of the prompt.
"""

from argparse import ArgumentTypeError
from statistics import mean

import numpy as np

from benchmarks import runs
from benchmarks.grid import number
from benchmarks.tables import parser_of, table, whole
from speculative.engines.model import LastCall, Model
from speculative.filters import Filters
from speculative.lookahead.costs import line_through
from speculative.report.simulate import Clock
from speculative.run.cost_timer import CostTimer
from speculative.run.decode import new_loop, new_models
from speculative.run.session import Session
from speculative.support.texts import read_prompts

ROWS = (1, 5, 9, 17, 33, 512)
MS = {  # {machine of two cores: {weights: milliseconds of a call that reads so many tokens}}
    "emerald_rapids": {
        "float32": (193, 220, 239, 270, 338, 5320),
        "int8": (54, 63, 70, 85, 116, 1845),
        "int4": (38, 46, 51, 80, 135, 2173),
        "draft": (5.8, 7.0, 8.1, 10, 14, 160),
    },
    "zen4": {  # at 52 GB/s
        "float32": (119, 164, 177, 295, 568, 8200),
        "int8": (43, 50, 60, 107, 193, 2900),
        "int4": (30, 44, 57, 107, 193, 2900),
        "draft": (6.5, 7.4, 8.3, 12, 20, 250),
    },
    "avx2": {  # Emerald Rapids without its instructions for bytes
        "float32": (212, 246, 271, 388, 680, 11132),
        "int8": (69, 121, 219, 409, 790, 12247),
        "int4": (46, 136, 233, 438, 850, 12566),
        "draft": (7.4, 15, 23, 40, 72, 1100),
    },
}
SETTINGS = [f"{drafter}:{K}" for drafter in ("model", "prompt_lookup+model", "int8/model") for K in (4, 8, "auto")]


def drafter_and_K(text: str) -> str:
    """Return a setting as it is. Raises ArgumentTypeError if it is not DRAFTER:K."""
    drafter, colon, K = text.rpartition(":")
    if not drafter or not colon or not (K == "auto" or K.isdecimal()):
        raise ArgumentTypeError(f"{text!r:.40} should be DRAFTER:K, such as model:4 or int8/model:auto")
    return text


class PricedModels:
    """Makes models whose calls take the time of a table."""

    def __init__(self, session: Session, machine: str):
        self.clock = Clock()  # in milliseconds
        self.costs = {}  # by role, a function from tokens to milliseconds
        for role in session.plan.network_roles:
            weights = "draft" if role == "draft" else session.models.spec(role).dtype
            self.costs[role] = line_through(dict(zip(ROWS, MS[machine][weights], strict=True)))

    def new_model(self, network, filters: Filters, role: str) -> Model:
        if role not in self.costs:
            return Model(network, filters, role)
        return PricedModel(network, filters, role, self)

    def call_ms(self, role: str, x, n_rows: int) -> float:  # [n]
        """In place of CostTimer.time_call."""
        return self.costs[role](n_rows) if role in self.costs else 0.0


class PricedModel(Model):
    def __init__(self, network, filters: Filters, role: str, models: PricedModels):
        super().__init__(network, filters, role)
        self.models = models

    def distributions(self, began: float, last: LastCall) -> np.ndarray:  # -> [m, n_vocab]
        rows = super().distributions(began, last)  # [m, n_vocab]
        ms = self.models.costs[self.role](self.log[-1].n_read)
        self.log[-1] = self.log[-1]._replace(seconds=ms)
        self.models.clock.wait(ms)
        return rows


def speedup(session: Session, setting: str, prompt: str, machine: str, o) -> float:
    """How many times as fast a prompt is decoded as without drafts."""
    drafter, K = setting.rsplit(":", 1)
    accept = "block" if o.temperature and "/" in drafter else "token"
    session = session.changed(drafter=drafter, K=number(K), temperature=o.temperature, accept=accept)
    N = o.n_tokens
    priced = PricedModels(session, machine)
    setup = session.new_setup(session.plan)
    setup.new_model = priced.new_model
    for learned in setup.learned.values():
        learned.clock = priced.clock
    x = session.input_ids(prompt, N)  # [n]
    timer = CostTimer(setup, session.engine, session.n_ctx)
    timer.time_call = priced.call_ms
    timer.time_levels(x)
    session.forget()
    began = priced.clock.now
    models = new_models(setup, setup.loaded)
    list(new_loop(setup, models, "speculative", x, N, np.random.default_rng(0)))
    ms = priced.clock.now - began
    target = priced.costs["target"]
    plain_ms = target(len(x)) + (N - 1) * target(1)
    return plain_ms / ms


def main(argv: list[str]) -> None:
    parser = parser_of("prices", __doc__)
    runs.add_models(parser.add_argument)
    parser.add_argument("--costs", nargs="+", choices=MS, default=[*MS], help="tables")
    parser.add_argument(
        "--settings", nargs="+", type=drafter_and_K, default=[*SETTINGS, "int8/prompt_lookup+model:auto"]
    )
    parser.add_argument("--prompts", default=str(runs.PROMPTS["prose"]), help="file")
    parser.add_argument("--n_prompts", type=whole, default=20)
    parser.add_argument("--n_tokens", type=whole, default=40)
    parser.add_argument("--temperature", type=float, default=0.0)
    o = parser.parse_args(argv)
    session = runs.load(o, [setting.rsplit(":", 1)[0] for setting in o.settings])
    prompts = read_prompts(o.prompts, o.n_prompts)
    lines = []
    for setting in o.settings:
        means = {
            machine: mean(speedup(session, setting, prompt, machine, o) for prompt in prompts) for machine in o.costs
        }
        lines.append({"setting": setting} | means)
    print(table(lines, " ".join(["setting", *(f"{machine}:.2f" for machine in o.costs)])))
