"""The words of LLVM's language that the kernels are written in, for vectors as wide as this CPU's registers."""

from itertools import product

from llvmlite import ir
from numba.core.cgutils import get_or_insert_function

from speculative.engines.cpu import REGISTERS, this_cpu

I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F32 = ir.FloatType()
POINTER = I8.as_pointer()


class Words:
    """Around llvmlite's builder, `ir`: what takes more than one instruction has a word here.

    floats and integers are the types of a register of float32s and int32s.
    """

    def __init__(self, builder):
        self.ir = builder
        self.cpu = this_cpu()
        self.floats = ir.VectorType(F32, self.cpu.vector)
        self.nothing = ir.VoidType()
        self.integers = ir.VectorType(I32, self.cpu.vector)

    # ---- Numbers and memory ----

    def integer(self, n_bits: int):
        """The type of such a number."""
        return ir.IntType(n_bits)

    def vector(self, n_bits: int, n: int):
        """The type of n such numbers."""
        return ir.VectorType(ir.IntType(n_bits), n)

    def number(self, n: int):
        """Such as a stride."""
        return I64(n)

    def bytes_at(self, content: bytes):
        """The address of constant bytes."""
        kind = ir.ArrayType(I8, len(content))
        constant = ir.GlobalVariable(self.ir.module, kind, self.ir.module.get_unique_name("bytes"))
        constant.initializer = kind(bytearray(content))
        constant.global_constant = True
        constant.linkage = "internal"
        return self.ir.bitcast(constant, POINTER)

    def at(self, pointer, n_bytes):
        """The address n_bytes further on."""
        return self.ir.gep(pointer, [n_bytes if isinstance(n_bytes, ir.Value) else I64(n_bytes)])

    def times(self, value, n: int):
        return self.ir.mul(value, I64(n))

    def load(self, pointer, what, align=4):
        return self.ir.load(self.ir.bitcast(pointer, what.as_pointer()), align=align)

    def store(self, value, pointer, align=4):
        self.ir.store(value, self.ir.bitcast(pointer, value.type.as_pointer()), align=align)

    def load_side_by_side(self, pointer, what, align=None):
        """REGISTERS vectors of type `what`, aligned to their size where nothing else is said."""
        size = what.count * (4 if what == self.floats else what.element.width // 8)
        return [self.load(self.at(pointer, i * size), what, align or size) for i in range(REGISTERS)]

    def full(self, vector, value):
        """np.full(vector.count, value) of a constant"""
        return self.constants(vector, [value] * vector.count)

    def constants(self, vector, values):
        return ir.Constant(vector, list(values))

    def broadcast(self, value):
        """np.full(cpu.vector, value)"""
        undefined = ir.Constant(ir.VectorType(value.type, self.cpu.vector), ir.Undefined)
        one = self.ir.insert_element(undefined, value, I32(0))
        return self.ir.shuffle_vector(one, undefined, self.full(self.integers, 0))

    def load_float(self, pointer):
        """np.full(cpu.vector, the float32 that lies there)"""
        return self.broadcast(self.load(pointer, F32))

    def load_integer(self, pointer):
        """The same for an int32."""
        return self.broadcast(self.load(pointer, I32))

    def widened(self, bits):
        """bfloat16s, as whole numbers of 16 bits -> floats."""
        return self.ir.bitcast(
            self.ir.shl(self.ir.zext(bits, self.integers), self.full(self.integers, 16)), self.floats
        )

    def call(self, name: str, result, *operands):
        """Calls one of LLVM's own functions."""
        signature = ir.FunctionType(result, [operand.type for operand in operands])
        return self.ir.call(get_or_insert_function(self.ir.module, signature, name), operands)

    def prefetch(self, pointer, ahead, n_bytes: int):
        """Asks for n_bytes of memory that lie `ahead` bytes further on, where that is not 0: they come into the second
        cache, and nothing else changes."""
        with self.ir.if_then(self.ir.icmp_signed("!=", ahead, I64(0))):
            for byte in range(0, n_bytes, 64):
                line = self.at(self.at(pointer, ahead), byte)
                self.call("llvm.prefetch.p0", ir.VoidType(), line, I32(0), I32(2), I32(1))

    def keep_order(self):
        """Keeps the compiler from moving what is loaded after this before it: memory that is not read in order is not
        fetched ahead."""
        self.ir.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)

    def loop(self, n, values):
        """for i in range(n), n >= 1, around what is built before its end(); `values` are carried along."""
        return Loop(self.ir, n if isinstance(n, ir.Value) else I64(n), values)

    # ---- Products ----

    def multiply_add(self, a, b, c):
        """a * b + c of floats, rounded once where the CPU can do that in one instruction, else twice; always the same
        on one CPU."""
        if not self.cpu.fused:
            return self.ir.fadd(self.ir.fmul(a, b), c)
        return self.call(f"llvm.fma.v{self.cpu.vector}f32", self.floats, a, b, c)

    def for_each(self, rows, registers, sums, function):
        """[function(row's value, register's value, sum), ...], in the order in which the sums lie."""
        pairs = product(rows, registers)
        return [function(row, register, sum_) for (row, register), sum_ in zip(pairs, sums, strict=True)]

    def for_each_register(self, values):
        """A value for each row -> one for each sum."""
        return [value for value in values for _ in range(REGISTERS)]

    def allow(self, feature: str) -> None:
        """LLVM refuses an instruction in a function that is not said to use it, where it does not know that this CPU
        has it; llvmlite's own add() knows no such word."""
        set.add(self.ir.function.attributes, f'"target-features"="+{feature}"')


class Loop:
    """See Words.loop: `i` and `values` are those of the round that is being built."""

    def __init__(self, builder, n, values):
        self.builder = builder
        self.n = n
        before = builder.block
        self.body = builder.append_basic_block()
        self.after = builder.append_basic_block()
        builder.branch(self.body)
        builder.position_at_end(self.body)
        first = [I64(0), *values]
        self.phis = [builder.phi(value.type) for value in first]
        for phi, value in zip(self.phis, first, strict=True):
            phi.add_incoming(value, before)
        self.i, *self.values = self.phis

    def end(self, values) -> None:
        next_i = self.builder.add(self.i, I64(1))
        for phi, value in zip(self.phis, (next_i, *values), strict=True):
            phi.add_incoming(value, self.builder.block)
        self.builder.cbranch(self.builder.icmp_signed("<", next_i, self.n), self.body, self.after)
        self.builder.position_at_end(self.after)
