// bfloat16 by AMX, which CPUs of Intel have from Sapphire Rapids on: eight registers, each of which holds a matrix of up
// to 16 rows of 64 bytes, and an instruction that multiplies two of them. (Intel calls these registers tiles. Here a
// tile is a part of a weight.)
//
//   product  sums [16, V] += x [16, BLOCK] @ w [BLOCK, V]: of 16 rows, a block of inputs, half of a tile's channels.
//   order    A block's products are added up, and then added to the sum. As blocks follow each other in order, no bit
//            of a row depends on other rows. But the bits are not those of the loop in products.c. So rows go this way
//            in any number, one too.
//   groups   Up to 32 rows are a group: 16, and the others in registers of their own.
//
// When the library is loaded, the system is asked for the registers and a product is checked. Else none is used. For
// tests, -DAMX_IN_C=1 makes the instructions plain C, on any CPU; with -DAMX_IN_C=0 they are there, and refused.

#if defined(AVX512) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if !defined(AMX) && !defined(AMX_IN_C)
static int has_amx(void) { return 0; }
static void multiply_by_amx(int64_t rows, ARGUMENTS) {}
static void release_amx(void) {}
#else

enum { REGISTERS = 8, REGISTER_ROWS = AMX_ROWS / 2 };
typedef struct {  // as an instruction reads it: 64 bytes, of which those that are not named are 0
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} Shapes;

// ---- The instructions, and the same in C ----------------------------------------------------------------------------

// m, sums, x and w are numbers of registers; stride is in bytes.
#ifndef AMX_IN_C
static int is_permitted(void) {  // as these registers are large, the system keeps them for those who ask
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  return !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}
#define INSTRUCTION(...) __asm__ volatile(__VA_ARGS__ : "memory")
#define set_shapes(shapes) INSTRUCTION("ldtilecfg %0" : : "m"(shapes))
#define release_registers() INSTRUCTION("tilerelease" : :)
#define load(m, from, stride) INSTRUCTION("tileloadd (%0,%1), %%tmm" #m : : "r"(from), "r"((int64_t)(stride)))
#define store(m, to, stride) INSTRUCTION("tilestored %%tmm" #m ", (%0,%1)" : : "r"(to), "r"((int64_t)(stride)))
#define multiply(sums, x, w) INSTRUCTION("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sums : :)
#else
static _Thread_local Shapes shapes_now;
static _Thread_local char registers[REGISTERS][REGISTER_ROWS][64];

static int is_permitted(void) { return AMX_IN_C; }

static void set_shapes(Shapes shapes) {
  shapes_now = shapes;
  memset(registers, 0, sizeof(registers));
}

static void release_registers(void) { set_shapes((Shapes){0}); }

static void stop_if(int wrong) {  // as an instruction does
  if (wrong) __builtin_trap();
}

static void load(int m, const void *from, int64_t stride) {
  stop_if(!shapes_now.rows[m]);
  for (int r = 0; r < shapes_now.rows[m]; r++)
    memcpy(registers[m][r], (const char *)from + r * stride, shapes_now.row_bytes[m]);
}

static void store(int m, void *to, int64_t stride) {
  stop_if(!shapes_now.rows[m]);
  for (int r = 0; r < shapes_now.rows[m]; r++)
    memcpy((char *)to + r * stride, registers[m][r], shapes_now.row_bytes[m]);
}

INLINE vfloat flush(vfloat x) {  // a number too small for all its digits is 0
  vint is_tiny = ((vint)x & 0x7F800000) == 0;
  return (vfloat)((vint)x & ~(is_tiny & 0x7FFFFFFF));
}

INLINE vfloat add_product(vfloat sum, vint x, vint w) {  // of the upper halves of x and w
  vfloat a = (vfloat)(x & (int32_t)0xFFFF0000), b = (vfloat)(w & (int32_t)0xFFFF0000);
  return flush(multiply_add(sum, flush(a), flush(b)));
}

// Intel's manual adds up the products of even inputs and those of odd ones, each rounded once, and then both.
static void multiply(int sums, int x, int w) {
  const Shapes *s = &shapes_now;
  stop_if(!s->rows[sums] || s->rows[sums] != s->rows[x]);
  stop_if(!s->rows[w] || s->row_bytes[sums] != s->row_bytes[w] || s->row_bytes[x] != 4 * s->rows[w]);
  for (int r = 0; r < s->rows[sums]; r++) {
    vfloat even = {0}, odd = {0}, *sum = (vfloat *)registers[sums][r];
    for (int pair = 0; pair < s->rows[w]; pair++) {
      vint inputs = (vint){0} + (int32_t)((word *)registers[x][r])[pair], weights = *(vint *)registers[w][pair];
      even = add_product(even, inputs << 16, weights << 16);
      odd = add_product(odd, inputs, weights);
    }
    *sum = flush(flush(*sum) + flush(even + odd));
  }
}
#endif

// ---- Rows times a tile ----------------------------------------------------------------------------------------------

static _Thread_local int64_t shaped_for;  // rows for which this thread's registers have their shapes; 0 if for none

static void shape_registers(int64_t rows) {
  if (rows == shaped_for) return;
  int64_t first = least(rows, REGISTER_ROWS), others = rows - first;
  int64_t rows_of[REGISTERS] = {first, first, others, others, first, others, BLOCK / 2, BLOCK / 2};
  Shapes shapes = {.palette = 1};
  for (int m = 0; m < REGISTERS; m++) {
    int64_t row_bytes = m == 4 || m == 5 ? 2 * BLOCK : 4 * V;
    shapes.rows[m] = rows_of[m];
    shapes.row_bytes[m] = rows_of[m] ? row_bytes : 0;
  }
  set_shapes(shapes);
  shaped_for = rows;
}

static void release_amx(void) {  // at the end of a pass: the system then need not save the registers
  if (shaped_for) release_registers();
  shaped_for = 0;
}

// Registers 0 and 1 have the sums of the first rows, for both halves of the channels, 2 and 3 those of the other rows.
// 4 and 5 have a block's inputs, of the first rows and of the others; 6 and 7 its weights, of both halves.
static void multiply_by_amx(int64_t rows, ARGUMENTS) {
  enum { words = BLOCK * BFLOAT16_BYTES / 4, block_bytes = 2 * BLOCK * LANES };
  int64_t others = rows > REGISTER_ROWS, out_bytes = 4 * stride;
  float *out2 = out + REGISTER_ROWS * stride;
  char filled_up[block_bytes];
  shape_registers(rows);
  load(0, out, out_bytes);
  load(1, out + V, out_bytes);
  if (others) {
    load(2, out2, out_bytes);
    load(3, out2 + V, out_bytes);
  }
  for (int64_t k = 0; k < n_in; k += BLOCK, x += words * rows, tile += block_bytes, ask += BLOCK / 2 * pace) {
    for (int64_t i = 0; i < BLOCK / 2 * pace; i += 64) PREFETCH(ask + i);
    if (n_in - k < BLOCK) {  // the last block, with zeros
      memset(filled_up, 0, block_bytes);
      tile = memcpy(filled_up, tile, part_bytes(BFLOAT16, n_in - k));
    }
    load(6, tile, 4 * LANES);
    load(7, tile + 4 * V, 4 * LANES);
    load(4, x, 4 * words);
    multiply(0, 4, 6);
    multiply(1, 4, 7);
    if (others) {
      load(5, x + REGISTER_ROWS * words, 4 * words);
      multiply(2, 5, 6);
      multiply(3, 5, 7);
    }
  }
  store(0, out, out_bytes);
  store(1, out + V, out_bytes);
  if (others) {
    store(2, out2, out_bytes);
    store(3, out2 + V, out_bytes);
  }
}

// ---- Whether they are used ------------------------------------------------------------------------------------------

static int amx_works;  // for the whole process
static int has_amx(void) { return amx_works; }

static int multiplies_right(void) {  // whole numbers, whose sums are exact in every order
  enum { R = REGISTER_ROWS + 1, N = BLOCK + 5 };
  float x[R * N], w[N * LANES], out[R * LANES], expected[R * LANES] = {0};
  word prepared[R * 2 * BLOCK];
  _Alignas(64) char tile[4 * BLOCK * LANES];
  for (int i = 0; i < R * N; i++) x[i] = i % 7 - 3;
  for (int i = 0; i < N * LANES; i++) w[i] = i % 11 - 5;
  for (int r = 0; r < R; r++) prepare(BFLOAT16, x + r * N, N, r, R, prepared);
  pack(BFLOAT16, w, N, LANES, LANES, 1, tile);
  multiply_tile(&(Linear){.n_in = N, .format = BFLOAT16, .tiles = tile}, 0, prepared, R, (number[4]){0}, out);
  times_plain(R, x, w, N, expected);
  release_amx();
  return !memcmp(out, expected, sizeof(out));
}

__attribute__((constructor)) static void start_amx(void) {
  amx_works = is_permitted();
  amx_works = amx_works && multiplies_right();
}
#endif
