"""engine.c's product of float32 rows beside the plain loop in C, and its product of bfloat16 rows alone."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from speculative.engines.c import library

PRODUCTS = ("cpu.h", "arguments.h", "rows.c", "products.c", "pack.c", "amx.c")  # the C files that a product needs

AGAINST_PLAIN_C = """
int64_t rows_that_differ(int64_t n_in) {
  enum { MOST_INPUTS = 3 * BLOCK };
  static float x[ROWS * MOST_INPUTS], tile[MOST_INPUTS * LANES], out[ROWS * LANES], plain[ROWS * LANES];
  static word prepared[ROWS * MOST_INPUTS];
  int64_t n_different = 0;
  for (int64_t i = 0; i < ROWS * n_in; i++) x[i] = sinf(i + 1) / (i % 7 + 1);
  for (int64_t i = 0; i < n_in * LANES; i++) tile[i] = cosf(3 * i) / (i % 11 + 1);
  for (int R = 1; R <= ROWS; R++) {
    for (int i = 0; i < ROWS * LANES; i++) out[i] = plain[i] = 1.0f / (i + 3);
    for (int row = 0; row < R; row++) prepare(FLOAT32, x + row * n_in, n_in, row, R, prepared);
    multiply_float32(R, prepared, (const char *)tile, n_in, (const char *)tile, 0, out, LANES);
    times_plain(R, x, tile, n_in, plain);
    n_different += memcmp(out, plain, sizeof(out)) != 0;
  }
  return n_different;
}
"""

BFLOAT16_PRODUCT = """
int uses_amx(void) { return has_amx(); }
void product(int64_t rows, int64_t n_in, const float *x, const float *w, float *out) {
  static word prepared[40 * 1024];
  static _Alignas(64) char tile[4 * 1024 * LANES];
  for (int64_t group = 0, first = 0, end; first < rows; group++, first = end) {
    end = group_start(BFLOAT16, rows, group + 1);
    word *rows_of_group = prepared + first * n_words(BFLOAT16, n_in);
    for (int64_t r = first; r < end; r++) prepare(BFLOAT16, x + r * n_in, n_in, r - first, end - first, rows_of_group);
  }
  pack(BFLOAT16, w, n_in, LANES, LANES, 1, tile);
  multiply_tile(&(Linear){.n_in = n_in, .format = BFLOAT16, .tiles = tile}, 0, prepared, rows, (number[4]){0}, out);
}
"""


def compiler() -> list[str]:
    """The command and the flags with which engine.c is compiled."""
    return [*library.compilers()[0], *library.FLAGS, library.NATIVE]


def compiled(code: str, sources: Path, folder: Path, *flags: str) -> ctypes.CDLL:
    """Compile this code after the C files of a product, which are in one folder, in another folder."""
    source, library = folder / "code.c", folder / "code.so"
    includes = "".join(f'#include "{name}"\n' for name in PRODUCTS)
    source.write_text(includes + code, encoding="utf-8")
    words = [*compiler(), *flags, f"-I{sources}", os.fspath(source), "-o", os.fspath(library), "-lm"]
    subprocess.run(words, check=True)
    return ctypes.CDLL(os.fspath(library))


def rows_that_differ(sources: Path, folder: Path) -> int:
    """Count the rows that differ in a bit from those of the plain loop: for each number of rows, of whole blocks of
    inputs and of others. The C files are those of a folder; they are compiled in another."""
    count = compiled(AGAINST_PLAIN_C, sources, folder).rows_that_differ
    count.argtypes = [ctypes.c_int64]
    return sum(count(n_in) for n_in in (1, 31, 32, 33, 96))


def bfloat16_product(sources: Path, folder: Path, *flags: str) -> Callable:
    """Return product(x, w) of the C files: [rows, n_in] @ [n_in, lanes] -> [rows, lanes]. At most 40 rows and 1,024
    inputs."""
    library = compiled(BFLOAT16_PRODUCT, sources, folder, "-O1", *flags)

    def product(x, w):  # [rows, n_in], [n_in, lanes] -> [rows, lanes]
        x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
        out = np.empty((len(x), w.shape[1]), np.float32)  # [rows, lanes]
        sizes = [ctypes.c_int64(size) for size in x.shape]
        library.product(*sizes, *[ctypes.c_void_p(array.ctypes.data) for array in (x, w, out)])
        return out

    return product


def amx_is_used(sources: Path, folder: Path) -> bool:
    """Return whether AMX, in C, passes its check when the library is loaded."""
    flags = ("-O1", "-DAMX_IN_C=1", "-DSLOW_DOT2")  # as on Intel, where rows are in pairs for AMX alone
    return bool(compiled(BFLOAT16_PRODUCT, sources, folder, *flags).uses_amx())
