"""engine.c's product of float32 rows beside the plain loop in C."""

import ctypes
import os
import subprocess
from pathlib import Path

from speculative.engines.c import library

AGAINST_PLAIN_C = """
#include "cpu.h"
#include "arguments.h"
#include "rows.c"
#include "products.c"
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


def compiler() -> list[str]:
    """The command and the flags with which engine.c is compiled."""
    return [*library.compilers()[0], *library.FLAGS, library.native()]


def rows_that_differ(sources: Path, folder: Path) -> int:
    """Compile the C files in a folder with the loops above, in another folder, and count the rows that differ in a bit:
    for each number of rows, of whole blocks of inputs and of others."""
    source, compiled = folder / "against_plain.c", folder / "against_plain.so"
    source.write_text(AGAINST_PLAIN_C, encoding="utf-8")
    subprocess.run([*compiler(), f"-I{sources}", os.fspath(source), "-o", os.fspath(compiled), "-lm"], check=True)
    count = ctypes.CDLL(os.fspath(compiled)).rows_that_differ
    count.argtypes = [ctypes.c_int64]
    return sum(count(n_in) for n_in in (1, 31, 32, 33, 96))
