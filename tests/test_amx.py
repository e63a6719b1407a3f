"""bfloat16's kernel for tile registers, over an emulation of the instructions: layout, edges, order, and that no bit
depends on the number of rows. What the real instructions give has not been seen."""

import ctypes
import threading
from dataclasses import replace

import numpy as np
import pytest
from test_kernels import multiply
from tiny import HPARAMS, convert, logits_themselves, random_params

pytest.importorskip("numba")

from llvmlite import binding, ir

from speculative.engines import formats, kernels, runtime
from speculative.engines.cpu import Cpu, this_cpu
from speculative.engines.formats import BFLOAT16, amx
from speculative.engines.formats.bfloat16 import from_upper_half
from speculative.engines.kernels import build
from speculative.engines.llvm import POINTER, Words
from speculative.engines.packed import PackedWeight, packer
from speculative.engines.plain import CachedModel, PlainPass

pytestmark = pytest.mark.skipif(this_cpu().vector != 16 or not BFLOAT16.dot(this_cpu()).name, reason="other layouts")

# ---- The instructions, as Intel's manual describes them --------------------------------------------------------------


class Registers(threading.local):
    """Eight registers of up to 16 rows of up to 64 bytes, of each thread."""

    def __init__(self):
        self.shapes = {}  # {register: (rows, bytes of a row)}; empty where nothing is configured
        self.tiles = {}

    def configure(self, address):
        layout = np.frombuffer(ctypes.string_at(address, 64), np.uint8)
        assert layout[0] == 1
        assert not layout[1:16].any()
        widths = layout[16:48].view(np.uint16)
        self.shapes = {i: (int(layout[48 + i]), int(widths[i])) for i in range(8) if layout[48 + i]}
        assert all(rows <= 16 and width <= 64 for rows, width in self.shapes.values())
        self.tiles = {i: np.zeros(shape, np.uint8) for i, shape in self.shapes.items()}

    def load(self, register, address, stride):
        rows, width = self.shapes[register]
        lines = [ctypes.string_at(address + i * stride, width) for i in range(rows)]
        self.tiles[register] = np.frombuffer(b"".join(lines), np.uint8).reshape(rows, width)

    def store(self, register, address, stride):
        for i, row in enumerate(self.tiles[register]):
            ctypes.memmove(address + i * stride, row.tobytes(), len(row.tobytes()))

    def multiply(self, sums, x, weights):
        """sums[m, n] += the sum over even inputs of x[m] * weights[n], plus that over odd ones, each in order."""
        a = from_upper_half(self.tiles[x].view(np.uint16))  # [rows, 2 * pairs]
        b = from_upper_half(self.tiles[weights].view(np.uint16))  # [pairs, 2 * 16]
        assert self.shapes[x][1] == 4 * self.shapes[weights][0]
        parts = []
        for which in (0, 1):
            part = np.zeros((len(a), b.shape[1] // 2), np.float32)
            for k in range(len(b)):
                part += a[:, 2 * k + which, None] * b[k, which::2]
            parts.append(part)
        c = self.tiles[sums].view(np.float32)
        self.tiles[sums] = (c + (parts[0] + parts[1])).view(np.uint8)

    def release(self):
        self.shapes = {}
        self.tiles = {}


REGISTERS_OF_A_THREAD = Registers()
KEPT = {}  # C functions live as long as the kernels that call them


def emulated(name):
    """A builder that calls the emulation."""

    def builder(words, *operands):
        if name == "configure":
            operands = [words.bytes_at(*operands)]
        operands = [words.number(o) if isinstance(o, int) else o for o in operands]
        if name not in KEPT:
            kinds = [ctypes.c_int64] * len(operands)
            KEPT[name] = ctypes.CFUNCTYPE(None, *kinds)(getattr(REGISTERS_OF_A_THREAD, name))
        address = ctypes.cast(KEPT[name], ctypes.c_void_p).value
        numbers = [words.ir.ptrtoint(o, ir.IntType(64)) if o.type.is_pointer else o for o in operands]
        function = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * len(numbers)).as_pointer()
        words.ir.call(words.ir.inttoptr(words.number(address), function), numbers)

    return builder


BY_TILES = amx.by_tiles(BFLOAT16, amx.Instructions(*map(emulated, amx.Instructions._fields)))


def step(words, x, tile, sums):
    """A kernel with a step of this file is not kept on the disk: the next process has the emulation elsewhere."""
    return BY_TILES.multiply(words, x, tile, sums)


EMULATED = replace(BY_TILES, multiply=step)


@pytest.fixture(scope="module")
def kernel():
    return build(EMULATED, None)


# ---- The kernel ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (33, 37), (70, 5), (64, 64), (300, 96)])
def test_it_gives_the_plain_product(kernel, n_in, n_out):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((n_in, n_out), np.float32)
    x = rng.standard_normal((40, n_in), np.float32)
    expected = BFLOAT16.product(x, BFLOAT16.round(w))
    largest = np.abs(x) @ np.abs(w)
    error = np.abs(multiply(x, PackedWeight.packed(w, "bfloat16"), kernel, EMULATED) - expected)
    assert np.all(error <= 3e-6 * largest)


def test_no_bit_depends_on_the_number_of_rows(kernel):
    rng = np.random.default_rng(1)
    weight = PackedWeight.packed(rng.standard_normal((100, 40), np.float32), "bfloat16")
    x = rng.standard_normal((70, 100), np.float32)
    alone = np.concatenate([multiply(row[None], weight, kernel, EMULATED) for row in x])
    for n in (2, 5, 15, 16, 17, 31, 32, 33, 64, 65, 70):
        assert np.array_equal(multiply(x[:n], weight, kernel, EMULATED), alone[:n])


def test_a_configuration_names_each_register_that_is_used():
    one = np.frombuffer(amx.configuration(1), np.uint8)
    assert len(one) == 64
    assert one[0] == 1
    assert one[16:48].view(np.uint16)[:8].tolist() == [64, 64, 0, 0, 64, 0, 64, 64]
    assert one[48:].tolist() == [1, 1, 0, 0, 1, 0, 16, 16] + 8 * [0]
    many = np.frombuffer(amx.configuration(21), np.uint8)
    assert many[48:].tolist() == [16, 16, 5, 5, 16, 5, 16, 16] + 8 * [0]


def test_a_pass_with_it_is_a_model_in_bfloat16():
    hparams = HPARAMS | {"n_layer": 1}
    changes = {"name": "tiles", "embedding": "tiles", "jax": "it is emulated", "faster": lambda cpu, format: None}
    formats.register(replace(EMULATED, **changes))
    try:
        params = convert(random_params(hparams), packer("tiles"))
        fast, plain = (CachedModel(params, hparams, logits_themselves, new) for new in (runtime.new_pass, PlainPass))
        x = np.arange(7)
        assert np.max(np.abs(fast(x, 3) - plain(x, 3))) <= 1e-2 * np.max(np.abs(plain(x, 3)))
    finally:
        del formats.FORMATS["tiles"]


# ---- On which CPU it is taken ----------------------------------------------------------------------------------------

TILES = frozenset({"amx-tile", "amx-bf16", "avx512bf16"})


@pytest.mark.parametrize("missing", sorted(TILES))
def test_a_cpu_that_lacks_a_part_of_it_does_without(missing):
    assert amx.where_there_is(Cpu(features=TILES - {missing}), BFLOAT16) is None


def test_a_kernel_that_gives_something_else_is_not_taken(kernel):
    """The instructions do not do what they should."""
    assert kernels.agrees(EMULATED, kernel)

    def twice(words, x, tile, sums):
        return EMULATED.multiply(words, x, tile, EMULATED.multiply(words, x, tile, sums))

    wrong = replace(EMULATED, name="wrong tiles", multiply=twice)
    assert not kernels.agrees(wrong, build(wrong, None))


@pytest.mark.parametrize("n_rows", [1, 21])
def test_the_instructions_are_known_to_llvm(n_rows):
    """The real kernel of a step, assembled for a CPU that has them."""
    real = amx.by_tiles(BFLOAT16, amx.AMX)
    module = ir.Module()
    integer = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [integer] * 3), "step")
    builder = ir.IRBuilder(function.append_basic_block())
    words = Words(builder)
    x, tile, out = (builder.inttoptr(address, POINTER) for address in function.args)
    x_rows = kernels.area(words, x, words.number(3200), n_rows)
    out_rows = kernels.area(words, out, words.number(128), n_rows)
    real.end(words, out_rows, real.multiply(words, x_rows, tile, real.begin(words, out_rows)))
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu="sapphirerapids", features="+amx-tile,+amx-bf16")
    assembled = machine.emit_assembly(binding.parse_assembly(str(module)))
    found = [assembled.count(name) for name in ("ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease")]
    assert found == ([1, 5, 2, 2, 1] if n_rows == 1 else [1, 8, 4, 4, 1])
