"""The weight formats: one file each, and this registry, through which all else knows them.

A format that lacks a part, or whose parts contradict each other, is refused when it is registered.
"""

from dataclasses import fields

import numpy as np

from speculative.engines.cpu import BLOCK, Cpu
from speculative.engines.formats.base import Format, OnJax, Stored  # noqa: F401
from speculative.engines.formats.bfloat16 import BFLOAT16
from speculative.engines.formats.float32 import FLOAT32
from speculative.engines.formats.int4 import INT4
from speculative.engines.formats.int8 import INT8
from speculative.support.errors import UserError

FORMATS: dict[str, Format] = {}  # by name, in the order in which --help has them


def register(format: Format) -> None:
    """From now on the format can be named wherever one is. Raises UserError, which says what is wrong with it."""
    title = f"the weight format {format.name or 'without a name'}"
    parts = {f.name: f.type.__metadata__[0] for f in fields(Format) if hasattr(f.type, "__metadata__")}
    lacks = [f"{part} ({words})" for part, words in parts.items() if getattr(format, part) is None]
    if lacks:
        raise UserError(f"{title} lacks {'; '.join(lacks)}")
    if format.name in FORMATS:
        raise UserError(f"{title} is registered already")
    has_lookup = format if format.embedding == format.name else FORMATS.get(format.embedding)
    if not has_lookup or not has_lookup.lookup:
        raise UserError(f"{title} cannot have an embedding in {format.embedding}: that is no format with a lookup")
    if why := contradiction(format, Cpu()):
        raise UserError(f"{title} contradicts itself: {why}")
    FORMATS[format.name] = format


def contradiction(format: Format, cpu: Cpu) -> str | None:
    """The fault of the parts that are NumPy, tried on a small matrix; None where they have none."""
    step = format.step
    if BLOCK % step or (format.rows.build and step != BLOCK):
        return f"a step of {step} inputs does not fit rows of blocks of {BLOCK}"
    if format.rows.bytes(cpu) > 4 * BLOCK:
        return f"its rows have more than {4 * BLOCK} bytes for {BLOCK} inputs"
    n_in = BLOCK + 3
    n = cpu.lanes - 1
    w = np.random.default_rng(0).standard_normal((n_in, n), np.float32)  # [n_in, n]
    stored = format.round(w)
    tile = format.tile(stored, cpu)
    shape = (-(-n_in // step), format.step_bytes(cpu))
    if tile.dtype != np.uint8 or tile.shape != shape:
        return f"its tile is {tile.dtype} {tile.shape}, not uint8 {shape}"
    again = format.untile(tile, n_in, cpu)
    same = again.numbers.shape == (n_in, cpu.lanes) and np.array_equal(again.numbers[:, :n], stored.numbers)
    if not same:
        return "untile does not give back what tile was given"
    widened = format.widen(stored)  # [n_in, n]
    if widened.dtype != np.float32 or widened.shape != w.shape:
        return f"widen gives {widened.dtype} {widened.shape}, not float32 {w.shape}"
    x = np.eye(1, n_in, dtype=np.float32)  # [1, n_in]
    if not np.allclose(format.product(x, stored), widened[:1], rtol=1e-2, atol=1e-2):
        return "product does not multiply by what widen gives"
    return None


def find(name: str) -> Format:
    """Raises UserError where there is none of that name."""
    if name not in FORMATS:
        raise UserError(f"there is no weight format {name!r:.80}: it is one of {', '.join(FORMATS)}")
    return FORMATS[name]


def on_jax(name: str) -> OnJax:
    """The parts that JAX needs of this format. Raises UserError where it cannot take it."""
    needs = find(name).jax
    if isinstance(needs, str):
        raise UserError(f"weights in {name} are for --engine numpy: {needs}")
    return needs


def described() -> str:
    """For --help."""
    return ", ".join(f"{name} ({format.help})" for name, format in FORMATS.items())


def by_size(jax: bool = False) -> list[str]:
    """Names, the largest first, of all formats, or of those that JAX takes."""
    taken = [name for name, format in FORMATS.items() if not jax or isinstance(format.jax, OnJax)]
    return sorted(taken, key=lambda name: -FORMATS[name].weight_bytes)


def n_bytes(name: str, n_in: int, n_out: int) -> int:
    """The bytes of a matrix in that format."""
    return int(find(name).weight_bytes * n_in * n_out) + find(name).channel_bytes * n_out


def model_bytes(name: str, shapes: dict[str, tuple[int, ...]]) -> int:
    """The bytes of a model whose matrices are in that format, of {name of a parameter: shape}."""
    total = 0
    for parameter, shape in shapes.items():
        if parameter == "wte":
            n_vocab, n_embd = shape
            total += n_bytes(find(name).embedding, n_embd, n_vocab)
        elif parameter.endswith("/w"):
            total += n_bytes(name, *shape)
        else:
            total += n_bytes("float32", 1, int(np.prod(shape)))
    return total


for format in (FLOAT32, BFLOAT16, INT8, INT4):
    register(format)
