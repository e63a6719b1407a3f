// gpt2.py once more, in C: the same functions under the same names, for a few rows at a time, in several threads.
//
// A token costs the time to read every weight from memory, and so do the K+1 rows of a window if each weight is read
// once and used for all of them. Hence the order of everything below:
//
//   tile   A weight [n_in, n_out] is stored as tiles of LANES neighbouring output channels (two vector registers), each
//          with all its inputs in order: [n_out / LANES][n_in][LANES]. A product reads its tiles from front to back.
//   sums   Each pair (row, channel) has one sum, which stays in a register from the first input to the last.
//   order  out = ((x[0] w[0]) + x[1] w[1]) + x[2] w[2] ..., whatever the number of rows, and wherever a loop stops to
//          go on later. So no bit of a row depends on the rows beside it, on the threads, or on where a prompt is cut.
//
// Shapes are in comments, as in gpt2.py. Read it from the bottom up (gpt2 is the whole network) or from the top down.

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#ifdef _WIN32
int SwitchToThread(void);
#define sched_yield SwitchToThread
#else
#include <sched.h>
#endif

// ---- The CPU --------------------------------------------------------------------------------------------------------

// V floats fill a register. The sums of ROWS rows are two registers each, which leaves some for weights and inputs: of
// 32 registers with AVX-512 and on ARM, of 16 elsewhere.
#if defined(__AVX512F__) && defined(__AVX512BW__)
enum { V = 16, ROWS = 10 };
#elif defined(__AVX2__)
enum { V = 8, ROWS = 5 };
#elif defined(__aarch64__)
enum { V = 4, ROWS = 10 };
#else
enum { V = 4, ROWS = 5 };
#endif
enum { LANES = 2 * V, BLOCK = 32 };  // BLOCK inputs of a row share a scale where rows are rounded to 8 bits

#define INLINE static inline __attribute__((always_inline))
#define VECTOR(size) __attribute__((vector_size(size), aligned(4), may_alias))
typedef float vfloat VECTOR(4 * V);
typedef int32_t vint VECTOR(4 * V);
typedef uint8_t vbyte VECTOR(4 * V);
typedef uint16_t vhalf __attribute__((vector_size(2 * V), aligned(2), may_alias));
typedef uint32_t word __attribute__((may_alias));

INLINE vfloat all(float x) { return x - (vfloat){0}; }  // x + 0 would be an addition: it turns -0 into 0

INLINE vfloat choose(vint mask, vfloat a, vfloat b) { return (vfloat)((mask & (vint)a) | (~mask & (vint)b)); }

INLINE vfloat multiply_add(vfloat sum, vfloat a, vfloat b) {  // rounded once, where the CPU can
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
  return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
  return (vfloat)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return sum + a * b;
#endif
}

// Each lane of dot4 adds the products of 4 weights and 4 inputs, all int8; x holds the same 4 inputs for all lanes. An
// instruction of x86 takes weights as 0 to 255: 128 more than they are, for which 128 times the inputs is taken away.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
enum { EXCESS = 128 };
#else
enum { EXCESS = 0 };
#endif

INLINE vint dot4(vint sum, vbyte w, vint x) {
#if defined(__AVX512BW__) && defined(__AVX512VNNI__)
  return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(__AVXVNNI__) && !defined(__AVX512BW__)
  return (vint)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#elif defined(__ARM_FEATURE_DOTPROD)
  return (vint)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
#elif defined(__x86_64__)  // two products of 16 bits at a time: of the bytes at odd places, and of those at even ones
  typedef int16_t vshort VECTOR(4 * V);
  vshort w1 = (vshort)w >> 8, w0 = (vshort)w << 8 >> 8, x1 = (vshort)x >> 8, x0 = (vshort)x << 8 >> 8;
#if defined(__AVX512BW__)
  return sum + (vint)_mm512_madd_epi16((__m512i)w1, (__m512i)x1) + (vint)_mm512_madd_epi16((__m512i)w0, (__m512i)x0);
#elif defined(__AVX2__)
  return sum + (vint)_mm256_madd_epi16((__m256i)w1, (__m256i)x1) + (vint)_mm256_madd_epi16((__m256i)w0, (__m256i)x0);
#else
  return sum + (vint)_mm_madd_epi16((__m128i)w1, (__m128i)x1) + (vint)_mm_madd_epi16((__m128i)w0, (__m128i)x0);
#endif
#else
  for (int i = 0; i < 32; i += 8) sum += ((vint)w << (24 - i) >> 24) * (x << (24 - i) >> 24);
  return sum;
#endif
}

// dot2 does the same for 2 bfloat16s, which are the upper halves of floats. Where the CPU has no instruction for them,
// prepared rows hold them as floats.
#if defined(__AVX512BF16__) || (defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC))
enum { PAIRS = 1 };
INLINE vfloat dot2(vfloat sum, vint w, vint x) {
#if defined(__AVX512BF16__)
  return (vfloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
#else
  return (vfloat)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)w, (bfloat16x8_t)x);
#endif
}
#else
enum { PAIRS = 0 };
#endif

// ---- What a pass is given: the keys of gpt2.py's nested dicts -------------------------------------------------------

enum { FLOAT32, BFLOAT16, INT8, INT4 };
enum { STORE, ADD, GELU_NEW, GELU, RELU };  // what becomes of a product: the last three by their names in config.json

typedef struct { int64_t n_in, n_out, format; const char *tiles; const float *scale; } Weight;
typedef struct { Weight w; const float *b; } Linear;
typedef struct { const float *g, *b; } Norm;
typedef struct { Linear c_attn, c_proj; } Attn;
typedef struct { Linear c_fc, c_proj; } Mlp;
typedef struct { Attn attn; Mlp mlp; Norm ln_1, ln_2; } Block;

typedef struct {
  int64_t n_layer, n_head, n_embd, n_inner, n_ctx, n_vocab, activation;
  const Block *blocks;
  Weight wte;  // [n_embd, n_vocab]
  const float *wpe;  // [n_ctx, n_embd]
  Norm ln_f;
  float *keys, *values;  // the cache, of each layer and head in tiles: see attention

  int64_t n_threads, n_rows, n_past, n_last;  // of this call
  const int64_t *tokens, *positions;  // [n_rows]
  const uint8_t *sees;  // [n_rows, sees_width] in a tree: the slots of the cache that a row attends to; else 0
  int64_t sees_width;
  const int64_t *ahead;  // [3]: bytes ahead of a loop over 1 row, of one over several, and whether groups of rows ask

  int64_t most_rows;  // in a call
  float *x, *qkv, *a, *hidden;  // [most_rows, n_embd], [.., 3 * n_embd], [.., n_embd], [.., n_inner]
  float *logits;  // [n_last, n_vocab]
  word *prepared;  // [most_rows, the widest of them]
  char *scratch;  // [n_threads, scratch_bytes]
  int64_t scratch_bytes, waited, took;  // nanoseconds that the first thread waited for others, and all of the call
} GPT2;

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- Rows, as the products read them --------------------------------------------------------------------------------

// A prepared row is a sequence of 32-bit words. Up to ROWS of them are a group, whose words lie interleaved, [n_words,
// rows in the group]: so a loop over the inputs reads the words of all its rows in order, at constant distances.

static int64_t n_words(int format, int64_t n_in) {
  if (format == FLOAT32) return n_in;
  if (format == BFLOAT16) return up(n_in, 2) / (PAIRS ? 2 : 1);
  return up(n_in, BLOCK) / BLOCK * (BLOCK / 4 + 2);
}

static int64_t tile_bytes(int format, int64_t n_in) {
  if (format == FLOAT32) return 4 * LANES * n_in;
  if (format == BFLOAT16) return 2 * LANES * up(n_in, 2);
  return up(n_in, BLOCK) * LANES / (format == INT8 ? 1 : 2) + (format == INT8 ? 0 : up(n_in, BLOCK) / BLOCK * 2 * LANES);
}

static word to_bfloat16(float x) {  // to nearest, ties to even, in the upper half
  word bits;
  memcpy(&bits, &x, 4);
  return (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
}

static word whole(float x, int excess) {  // the nearest whole number, plus excess: no fraction has room beside 3 << 22
  float shifted = x + (float)((3 << 22) + excess);
  word bits;
  memcpy(&bits, &shifted, 4);
  return bits & 255;
}

static void round_to_bfloat16(const float *x, int64_t n, word *out) {  // [n] -> [n_words]
  if (PAIRS)
    for (int64_t i = 0; i < n / 2; i++) out[i] = to_bfloat16(x[2 * i]) >> 16 | to_bfloat16(x[2 * i + 1]);
  else
    for (int64_t i = 0; i < n; i++) out[i] = to_bfloat16(x[i]);
  if (n % 2) out[PAIRS ? n / 2 : n] = PAIRS ? to_bfloat16(x[n - 1]) >> 16 : 0;
}

static void round_to_int8(const float *x, int64_t n, word *out) {  // [n] -> [n_words]
  // Of each block: whole numbers up to 127, 4 to a word; the number by which they are to be multiplied; minus their sum.
  const float magic = 3 << 22;  // added to a number it leaves no bits for a fraction: the sum is rounded, and even on ties
  for (int64_t first = 0; first < n; first += BLOCK, out += BLOCK / 4 + 2) {
    float block[BLOCK] = {0}, most, scale, inverse;
    int32_t whole[BLOCK], bits = 0, sum = 0;
    memcpy(block, x + first, 4 * least(n - first, BLOCK));
    memcpy(whole, block, 4 * BLOCK);
    for (int k = 0; k < BLOCK; k++) bits = (whole[k] & 0x7FFFFFFF) > bits ? whole[k] & 0x7FFFFFFF : bits;
    memcpy(&most, &bits, 4);  // without their sign, floats are in the order of their bits
    inverse = most > 1e-30f ? 127 / most : 0;
    for (int k = 0; k < BLOCK; k++) block[k] = block[k] * inverse + magic;
    memcpy(whole, block, 4 * BLOCK);
    for (int k = 0; k < BLOCK; k++) ((int8_t *)out)[k] = (int8_t)whole[k];
    for (int k = 0; k < BLOCK; k++) sum += ((int8_t *)out)[k];
    scale = most / 127;
    memcpy(out + BLOCK / 4, &scale, 4);
    out[BLOCK / 4 + 1] = -sum;
  }
}

static void prepare(int format, const float *x, int64_t n, int64_t row, int64_t rows, word *own, word *group) {
  // Row `row` of the `rows` of a group. own: memory for it while it is not yet interleaved.
  const word *words = format == FLOAT32 ? (const word *)x : own;
  if (format == BFLOAT16) round_to_bfloat16(x, n, own);
  if (format >= INT8) round_to_int8(x, n, own);
  n = n_words(format, n);
  if (rows == 1) memcpy(group, words, 4 * n);
  else
    for (int64_t i = 0; i < n; i++) group[i * rows + row] = words[i];
}

// ---- A few rows times a part of a tile ------------------------------------------------------------------------------

// out[:R] += x[:R] @ tile. R is a constant in each copy of these loops, so that the sums are registers. Meanwhile the
// memory at `ask` is asked for, `pace` bytes for each 4 * LANES of the tile that are read; a pace of 0 asks for nothing.
#define ARGUMENTS const word *x, const char *tile, int64_t n_in, const char *ask, int64_t pace, float *out, int64_t stride
#define EACH(r) _Pragma("GCC unroll 16") for (int r = 0; r < R; r++)
#define FLOAT(place) (*(const float __attribute__((may_alias)) *)(x + (place) * R + r))
#define INT(place) ((vint){0} + *(const int32_t __attribute__((may_alias)) *)(x + (place) * R + r))
#define OUT(r, i) (*(vfloat *)(out + (r) * stride + (i) * V))
#define LOAD(type, i) (*(const type *)(tile + (i) * sizeof(type)))
#define ASK __builtin_prefetch(ask), __builtin_prefetch(ask + pace / 2), ask += pace
// After this, nothing that was read before it is read again: weights stay in the registers that they were loaded into.
#define KEEP __asm__ volatile("" ::: "memory")

INLINE void times_float32(const int R, ARGUMENTS) {
  vfloat s[ROWS][2];
  EACH(r) s[r][0] = OUT(r, 0), s[r][1] = OUT(r, 1);
  for (int64_t k = 0; k < n_in; k++, x += R, tile += 4 * LANES) {
    vfloat w0 = LOAD(vfloat, 0), w1 = LOAD(vfloat, 1);
    ASK;
    KEEP;
    EACH(r) {
      vfloat v = all(FLOAT(0));
      s[r][0] = multiply_add(s[r][0], v, w0);
      s[r][1] = multiply_add(s[r][1], v, w1);
    }
  }
  EACH(r) OUT(r, 0) = s[r][0], OUT(r, 1) = s[r][1];
}

INLINE void times_bfloat16(const int R, ARGUMENTS) {  // two inputs share 32 bits of the tile, the first in the lower 16
  vfloat s[ROWS][2];
  EACH(r) s[r][0] = OUT(r, 0), s[r][1] = OUT(r, 1);
  for (int64_t k = 0; k < n_in; k += 2, x += n_words(BFLOAT16, 2) * R, tile += 4 * LANES) {
    vint w0 = LOAD(vint, 0), w1 = LOAD(vint, 1);
    ASK;
    KEEP;
#if defined(__AVX512BF16__) || (defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC))
    EACH(r) {
      vint v = INT(0);
      s[r][0] = dot2(s[r][0], w0, v);
      s[r][1] = dot2(s[r][1], w1, v);
    }
#else
    vfloat w00 = (vfloat)(w0 << 16), w01 = (vfloat)(w0 & (int)0xFFFF0000);
    vfloat w10 = (vfloat)(w1 << 16), w11 = (vfloat)(w1 & (int)0xFFFF0000);
    EACH(r) {
      vfloat v0 = all(FLOAT(0)), v1 = all(FLOAT(1));
      s[r][0] = multiply_add(multiply_add(s[r][0], v0, w00), v1, w01);
      s[r][1] = multiply_add(multiply_add(s[r][1], v0, w10), v1, w11);
    }
#endif
  }
  EACH(r) OUT(r, 0) = s[r][0], OUT(r, 1) = s[r][1];
}

INLINE void times_int8(const int R, ARGUMENTS) {  // the sum over a block is exact; it is multiplied by the row's scale
  for (int64_t k = 0; k < n_in; k += BLOCK, x += (BLOCK / 4 + 2) * R) {
    vint e[ROWS][2];
    EACH(r) e[r][0] = e[r][1] = INT(BLOCK / 4 + 1) * EXCESS;
#pragma GCC unroll 8
    for (int i = 0; i < BLOCK / 4; i++, tile += 4 * LANES) {
      vbyte w0 = LOAD(vbyte, 0) ^ (EXCESS ? 0 : 128), w1 = LOAD(vbyte, 1) ^ (EXCESS ? 0 : 128);
      ASK;
      EACH(r) {
        vint v = INT(i);
        e[r][0] = dot4(e[r][0], w0, v);
        e[r][1] = dot4(e[r][1], w1, v);
      }
    }
    EACH(r) {
      vfloat scale = all(FLOAT(BLOCK / 4));
      OUT(r, 0) = multiply_add(OUT(r, 0), scale, __builtin_convertvector(e[r][0], vfloat));
      OUT(r, 1) = multiply_add(OUT(r, 1), scale, __builtin_convertvector(e[r][1], vfloat));
    }
  }
}

INLINE void times_int4(const int R, ARGUMENTS) {  // inputs k and k + 16 share a byte, as 0 to 15: 8 more than they are
  for (int64_t k = 0; k < n_in; k += BLOCK, x += (BLOCK / 4 + 2) * R, tile += 2 * sizeof(vhalf)) {
    vint e[ROWS][2];
    EACH(r) e[r][0] = e[r][1] = INT(BLOCK / 4 + 1) * 8;
#pragma GCC unroll 4
    for (int i = 0; i < BLOCK / 8; i++, tile += 4 * LANES) {
      vbyte w0 = LOAD(vbyte, 0), w1 = LOAD(vbyte, 1);
      ASK;
      EACH(r) {
        vint low = INT(i), high = INT(i + BLOCK / 8);
        e[r][0] = dot4(dot4(e[r][0], w0 & 15, low), w0 >> 4, high);
        e[r][1] = dot4(dot4(e[r][1], w1 & 15, low), w1 >> 4, high);
      }
    }
    vfloat scale0 = (vfloat)(__builtin_convertvector(LOAD(vhalf, 0), vint) << 16);  // bfloat16s, of the block's weights
    vfloat scale1 = (vfloat)(__builtin_convertvector(LOAD(vhalf, 1), vint) << 16);
    EACH(r) {
      vfloat scale = all(FLOAT(BLOCK / 4));
      OUT(r, 0) = multiply_add(OUT(r, 0), scale, scale0 * __builtin_convertvector(e[r][0], vfloat));
      OUT(r, 1) = multiply_add(OUT(r, 1), scale, scale1 * __builtin_convertvector(e[r][1], vfloat));
    }
  }
}

#define COPY(times, R) case R: times(R, x, tile, n_in, ask, pace, out, stride); return;
#define COPIES_OF_5(times, R) COPY(times, R) COPY(times, R + 1) COPY(times, R + 2) COPY(times, R + 3) COPY(times, R + 4)
#if defined(__AVX512F__) || defined(__aarch64__)
#define COPIES(times) COPIES_OF_5(times, 1) COPIES_OF_5(times, 6)
#else
#define COPIES(times) COPIES_OF_5(times, 1)
#endif
static void float32(int64_t rows, ARGUMENTS) { switch (rows) { COPIES(times_float32) } }
static void bfloat16(int64_t rows, ARGUMENTS) { switch (rows) { COPIES(times_bfloat16) } }
static void int8(int64_t rows, ARGUMENTS) { switch (rows) { COPIES(times_int8) } }
static void int4(int64_t rows, ARGUMENTS) { switch (rows) { COPIES(times_int4) } }
static void (*const times[])(int64_t rows, ARGUMENTS) = {float32, bfloat16, int8, int4};

static int64_t group_start(int64_t rows, int64_t group) {  // groups are of one size, or one row more: a row alone is dear
  int64_t groups = (rows + ROWS - 1) / ROWS;
  return group * (rows / groups) + least(group, rows % groups);
}

static void multiply(const Weight *w, const char *tile, const word *x, int64_t rows, const int64_t *ahead, float *out) {
  // [rows, n_in] prepared, a tile [n_in, LANES] -> [rows, LANES]
  enum { PART = 16384 };  // bytes of a tile that stay in the first cache while one group after the other reads them
  int64_t groups = (rows + ROWS - 1) / ROWS, n = w->n_in, f = w->format, bytes = ahead[rows > 1];
  memset(out, 0, 4 * LANES * rows);
  if (groups == 1) {
    times[f](rows, x, tile, n, tile + bytes, bytes ? 4 * LANES : 0, out, LANES);
    return;
  }
  int64_t part = PART / tile_bytes(f, BLOCK) * BLOCK, part_bytes = tile_bytes(f, part), part_words = n_words(f, part);
  int64_t askers = ahead[2] ? least(groups, 4) : 0, share = askers ? part_bytes / askers : 0;
  for (int64_t k = 0; k < n; k += part, tile += part_bytes)
    for (int64_t group = 0; group < groups; group++) {  // the first ones ask for the next part, each for its share
      int64_t first = group_start(rows, group), m = group_start(rows, group + 1) - first, asks = group < askers;
      times[f](m, x + first * n_words(f, n) + k / part * part_words * m, tile, least(part, n - k),
               asks ? tile + part_bytes + group * share : tile, asks ? 4 * LANES / askers : 0, out + first * LANES, LANES);
    }
}

// ---- The functions of gpt2.py ---------------------------------------------------------------------------------------

INLINE vfloat exp_(vfloat x) {  // for x <= 0: 2**n e**r, where r is small; 0 below -87
  const float magic = 3 << 22;
  vint tiny = x < all(-87);
  vfloat y = choose(tiny, all(-87), x), shifted = y * 1.44269504f + magic, n = shifted - magic;
  vfloat r = multiply_add(multiply_add(y, n, all(-355 / 512.0f)), n, all(2.1219444e-4f));  // y - n log(2)
  vfloat s = multiply_add(all(1 / 120.0f), r, all(1 / 720.0f));
  s = multiply_add(all(1 / 24.0f), r, s);
  s = multiply_add(all(1 / 6.0f), r, s);
  s = multiply_add(all(0.5f), r, s);
  s = multiply_add(all(1), r, s);
  s = multiply_add(all(1), r, s);
  vint power = ((vint)shifted - 0x4B400000 + 127) << 23;  // 2**n: the exponent's bits
  return (vfloat)((vint)(s * (vfloat)power) & ~tiny);
}

INLINE vfloat gelu(vfloat x) {  // 0.5 x (1 + tanh z) = x / (1 + e**(-2z))
  vfloat z = 0.7978845608f * (x + 0.044715f * x * x * x);
  vint positive = z > all(0);
  vfloat e = exp_(choose(positive, -2 * z, 2 * z));
  return x * choose(positive, all(1), e) / (1 + e);
}

static float total(const float *x, const float *y, int64_t n) {  // of x * y, in an order that n alone decides
  vfloat s[4] = {{0}};
  float sum = 0;
  int64_t i = 0;
  for (; i + 4 * V <= n; i += 4 * V)
    for (int j = 0; j < 4; j++) s[j] = multiply_add(s[j], *(vfloat *)(x + i + j * V), *(vfloat *)(y + i + j * V));
  s[0] = (s[0] + s[1]) + (s[2] + s[3]);
  for (int lane = 0; lane < V; lane++) sum += s[0][lane];
  for (; i < n; i++) sum += x[i] * y[i];
  return sum;
}

static void layer_norm(const float *x, Norm ln, int64_t n, const float *ones, float *out) {  // [n] -> [n]
  float mean = total(x, ones, n) / n;
  for (int64_t i = 0; i < n; i++) out[i] = x[i] - mean;
  float deviation = sqrtf(total(out, out, n) / n + 1e-5f);
  for (int64_t i = 0; i < n; i++) out[i] = ln.g[i] * (out[i] / deviation) + ln.b[i];
}

// ---- Threads --------------------------------------------------------------------------------------------------------

// They are Python's. Each has its share of the tiles and heads, and all meet at a barrier before one reads what others
// have written. A thread that waits looks again and again, then offers its core to others each time; one that is given
// no work for a while goes back to Python, to sleep.
enum { MOST_THREADS = 256, LOOKS = 50, PATIENCE = 4000 };
enum { ASLEEP, AWAKE, CALLED, WORK };
static struct { _Alignas(64) _Atomic int state; } threads[MOST_THREADS];
static _Alignas(64) _Atomic int64_t arrived;  // at the barrier
static _Alignas(64) _Atomic int64_t met;  // barriers passed
static _Alignas(64) GPT2 *work;

static int64_t nanoseconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void wait(int64_t looks) {
  if (looks > LOOKS) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void meet(GPT2 *m, int64_t thread) {
  int64_t before = atomic_load_explicit(&met, memory_order_acquire), since = 0;
  if (m->n_threads == 1) return;
  if (atomic_fetch_add_explicit(&arrived, 1, memory_order_acq_rel) == m->n_threads - 1) {
    atomic_store_explicit(&arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&met, before + 1, memory_order_release);
    return;
  }
  for (int64_t looks = 0; atomic_load_explicit(&met, memory_order_acquire) == before; wait(++looks))
    if (looks == LOOKS && thread == 0) since = nanoseconds();
  if (since) m->waited += nanoseconds() - since;
}

typedef struct {  // a thread's own memory
  word *prepared;  // rows that it prepares for itself
  word *row;  // one, before it is interleaved
  float *normed, *ones;  // a row after layer norm
  float *sums;  // [most_rows, LANES]
  float *scores, *path;  // [ROWS, n_ctx], [n_ctx], up to whole tiles
  int64_t n_bytes;
} Scratch;

enum { FEW = 8192 };  // numbers, which a thread prepares in about the time of a barrier

static Scratch scratch_of(const GPT2 *m, int64_t thread) {
  int64_t width = up(m->n_inner > m->n_embd ? m->n_inner : m->n_embd, BLOCK), room = up(m->n_ctx, LANES);
  int64_t sizes[] = {FEW + BLOCK * m->most_rows + ROWS * (room + width), width, width, width, LANES * m->most_rows, ROWS * room, room};
  char *at = m->scratch + thread * m->scratch_bytes, *parts[7];
  for (int i = 0; i < 7; i++) parts[i] = at, at += up(4 * sizes[i], 64);
  return (Scratch){(word *)parts[0], (word *)parts[1], (float *)parts[2], (float *)parts[3], (float *)parts[4],
                   (float *)parts[5], (float *)parts[6], at - parts[0]};
}

// ---- The functions of gpt2.py, of which each thread does its share --------------------------------------------------

static void embed(const GPT2 *m, int64_t thread) {  // x = wte[tokens] + wpe[positions]; a thread has some of the columns
  const Weight *w = &m->wte;
  for (int64_t row = 0; row < m->n_rows; row++) {
    int64_t token = m->tokens[row];
    int lane = token % LANES;
    const char *tile = w->tiles + token / LANES * tile_bytes(w->format, w->n_in);
    const float *position = m->wpe + m->positions[row] * m->n_embd;
    float *x = m->x + row * m->n_embd;
    for (uint32_t k = thread * m->n_embd / m->n_threads; k < (thread + 1) * m->n_embd / m->n_threads; k++) {
      float found;
      if (w->format == FLOAT32) found = ((const float *)tile)[k * LANES + lane];
      else if (w->format == BFLOAT16) {
        word bits = (word)((const uint16_t *)tile)[(k / 2 * LANES + lane) * 2 + k % 2] << 16;
        memcpy(&found, &bits, 4);
      } else found = (((const uint8_t *)tile)[(k / 4 * LANES + lane) * 4 + k % 4] - 128) * w->scale[token];
      x[k] = found + position[k];
    }
  }
}

INLINE void finish(const float *sums, const float *scale, const float *b, int then, int n, float *out) {
  // [LANES] -> out [n]: times the channels' scales, plus their biases, through the activation, or added to what is there
  float y[LANES] = {0};
  memcpy(y, sums, 4 * LANES);
  if (scale) for (int i = 0; i < n; i++) y[i] *= scale[i];
  if (b) for (int i = 0; i < n; i++) y[i] += b[i];
  if (then == ADD) for (int i = 0; i < n; i++) y[i] += out[i];
  if (then == GELU_NEW) for (int i = 0; i < LANES; i += V) *(vfloat *)(y + i) = gelu(*(vfloat *)(y + i));
  if (then == GELU) for (int i = 0; i < n; i++) y[i] = 0.5f * y[i] * (1 + erff(y[i] * 0.70710678f));
  if (then == RELU) for (int i = 0; i < n; i++) y[i] = y[i] < 0 ? 0 : y[i];
  memcpy(out, y, 4 * n);
}

static void linear(GPT2 *m, int64_t thread, const float *x, int64_t rows, const Norm *ln, Weight w, const float *b, int then, float *out) {
  // [rows, n_in] -> [rows, n_out]: (layer norm of) x @ w + b; a thread has some of the tiles
  int64_t n = m->n_threads, alone = n == 1 || rows * w.n_in <= FEW, words = n_words(w.format, w.n_in);
  Scratch own = scratch_of(m, thread);
  word *prepared = alone && n > 1 ? own.prepared : m->prepared;
  for (int64_t i = 0; ln && i < w.n_in; i++) own.ones[i] = 1;
  for (int64_t group = 0, first = 0, end; first < rows; group++, first = end) {
    end = group_start(rows, group + 1);
    for (int64_t row = first; row < end; row++) {
      if (!alone && row % n != thread) continue;  // few rows each thread prepares for itself, many all for all
      if (ln) layer_norm(x + row * w.n_in, *ln, w.n_in, own.ones, own.normed);
      prepare(w.format, ln ? own.normed : x + row * w.n_in, w.n_in, row - first, end - first, own.row, prepared + first * words);
    }
  }
  if (!alone) meet(m, thread);
  int64_t n_tiles = (w.n_out + LANES - 1) / LANES, bytes = tile_bytes(w.format, w.n_in);
  for (int64_t tile = thread * n_tiles / n; tile < (thread + 1) * n_tiles / n; tile++) {
    int64_t first = tile * LANES, left = w.n_out - first;
    const float *scale = w.scale ? w.scale + first : 0, *bias = b ? b + first : 0;
    multiply(&w, w.tiles + tile * bytes, prepared, rows, m->ahead, own.sums);
    for (int64_t row = 0; row < rows; row++) {
      float *sums = own.sums + row * LANES, *to = out + row * w.n_out + first;
      if (left >= LANES) finish(sums, scale, bias, then, LANES, to);
      else finish(sums, scale, bias, then, left, to);
    }
  }
}

static float softmax(float *scores, int64_t n, int64_t room, const uint8_t *sees, float *path) {
  // [room] -> e**(score - max) of the first n, and 0 for what a row does not see; returns their sum. A row of a tree
  // sums along its path, without gaps: so its bits are those of the same text as a chain.
  for (int64_t j = 0; sees && j < n; j++) scores[j] = sees[j] ? scores[j] : -INFINITY;
  for (int64_t j = n; j < room; j++) scores[j] = -INFINITY;
  vfloat most = *(vfloat *)scores, sum = {0};
  for (int64_t j = V; j < room; j += V) {
    vfloat s = *(vfloat *)(scores + j);
    most = choose(s > most, s, most);
  }
  float largest = most[0], all_of_it = 0;
  for (int lane = 1; lane < V; lane++) largest = most[lane] > largest ? most[lane] : largest;
  for (int64_t j = 0; j < room; j += V) *(vfloat *)(scores + j) = exp_(*(vfloat *)(scores + j) - largest);
  if (sees) {
    int64_t length = 0;
    for (int64_t j = 0; j < n; j++)
      if (sees[j]) path[length++] = scores[j];
    while (length % V) path[length++] = 0;
    scores = path;
    n = length;
  }
  for (int64_t j = 0; j < n; j += V) sum += *(vfloat *)(scores + j);
  for (int lane = 0; lane < V; lane++) all_of_it += sum[lane];
  return all_of_it;
}

static void attention(const GPT2 *m, Scratch own, int64_t layer, int64_t head) {
  // Adds the rows' keys and values to a head's cache; then each row attends to all up to its own. Keys lie as tiles
  // [n_ctx / LANES, d_head, LANES], values as [d_head / LANES, n_ctx, LANES]: both products are those of a weight. What
  // a row does not see has the probability 0, which changes no bit.
  int64_t d = m->n_embd / m->n_head, room = up(m->n_ctx, LANES), n_embd = m->n_embd;
  float *keys = m->keys + (layer * m->n_head + head) * room * d, shrink = 1 / sqrtf(d), totals[ROWS];
  float *values = m->values + (layer * m->n_head + head) * m->n_ctx * up(d, LANES);
  for (int64_t row = 0; row < m->n_rows; row++) {
    const float *qkv = m->qkv + row * 3 * n_embd + head * d;
    int64_t slot = m->n_past + row;
    for (int64_t i = 0; i < d; i++) keys[(slot / LANES * d + i) * LANES + slot % LANES] = qkv[n_embd + i];
    for (int64_t i = 0; i < d; i++) values[(i / LANES * m->n_ctx + slot) * LANES + i % LANES] = qkv[2 * n_embd + i];
  }
  for (int64_t first = 0; first < m->n_rows; first += ROWS) {
    int64_t rows = least(m->n_rows - first, ROWS), seen = m->n_past + first + rows;
    for (int64_t row = 0; row < rows; row++) {  // [rows, d] -> [d, rows]
      const float *q = m->qkv + (first + row) * 3 * n_embd + head * d;
      for (int64_t i = 0; i < d; i++) ((float *)own.prepared)[i * rows + row] = q[i] * shrink;
      memset(own.scores + row * room, 0, 4 * up(seen, LANES));
    }
    for (int64_t slot = 0; slot < seen; slot += LANES) {  // q @ k: [rows, d] -> [rows, seen]
      const char *tile = (const char *)(keys + slot * d);
      float32(rows, own.prepared, tile, d, tile, 0, own.scores + slot, room);
    }
    for (int64_t row = 0; row < rows; row++) {
      const uint8_t *sees = m->sees ? m->sees + (first + row) * m->sees_width : 0;
      float *scores = own.scores + row * room;
      totals[row] = softmax(scores, m->n_past + first + row + 1, up(seen, LANES), sees, own.path);
      prepare(FLOAT32, scores, seen, row, rows, 0, own.prepared);
    }
    for (int64_t i = 0; i < d; i += LANES) {  // weights @ v: [rows, seen] -> [rows, d]
      const char *tile = (const char *)(values + i * m->n_ctx);
      memset(own.sums, 0, 4 * LANES * rows);
      float32(rows, own.prepared, tile, seen, tile, 0, own.sums, LANES);
      for (int64_t row = 0; row < rows; row++)
        for (int64_t j = 0; j < least(LANES, d - i); j++)
          m->a[(first + row) * n_embd + head * d + i + j] = own.sums[row * LANES + j] / totals[row];
    }
  }
}

static void mha(GPT2 *m, int64_t thread, int64_t layer, const Attn *attn, const Norm *ln) {  // x += ...
  linear(m, thread, m->x, m->n_rows, ln, attn->c_attn.w, attn->c_attn.b, STORE, m->qkv);  // -> [n_rows, 3*n_embd]
  meet(m, thread);
  for (int64_t head = thread * m->n_head / m->n_threads; head < (thread + 1) * m->n_head / m->n_threads; head++)
    attention(m, scratch_of(m, thread), layer, head);  // -> [n_rows, n_embd]
  meet(m, thread);
  linear(m, thread, m->a, m->n_rows, 0, attn->c_proj.w, attn->c_proj.b, ADD, m->x);
}

static void ffn(GPT2 *m, int64_t thread, const Mlp *mlp, const Norm *ln) {  // x += ...
  linear(m, thread, m->x, m->n_rows, ln, mlp->c_fc.w, mlp->c_fc.b, m->activation, m->hidden);  // -> [n_rows, n_inner]
  meet(m, thread);
  linear(m, thread, m->hidden, m->n_rows, 0, mlp->c_proj.w, mlp->c_proj.b, ADD, m->x);  // -> [n_rows, n_embd]
}

static void forward(GPT2 *m, int64_t thread) {  // [n_rows] -> logits [n_last, n_vocab]
  embed(m, thread);
  meet(m, thread);
  for (int64_t layer = 0; layer < m->n_layer; layer++) {
    const Block *block = &m->blocks[layer];
    mha(m, thread, layer, &block->attn, &block->ln_1);
    meet(m, thread);
    ffn(m, thread, &block->mlp, &block->ln_2);
    meet(m, thread);
  }
  const float *x = m->x + (m->n_rows > m->n_last ? m->n_rows - m->n_last : 0) * m->n_embd;  // [n_last, n_embd]
  if (m->n_last) linear(m, thread, x, m->n_last, &m->ln_f, m->wte, 0, STORE, m->logits);
  meet(m, thread);  // after this the caller may change what m says
}

// ---- Packing --------------------------------------------------------------------------------------------------------

INLINE void pack_part(const int format, float w[BLOCK][LANES], const float *scale, word *out) {
  // BLOCK inputs of LANES channels, as a part of a tile
  float extreme[LANES] = {0}, inverse[LANES];
  memset(out, 0, 4 * BLOCK * LANES);
  for (int k = 0; k < BLOCK && format == INT4; k++)
    for (int i = 0; i < LANES; i++) extreme[i] = fabsf(w[k][i]) > fabsf(extreme[i]) ? w[k][i] : extreme[i];
  for (int i = 0; i < LANES && format == INT4; i++) {  // the extreme weight of each channel becomes -8
    word bits = to_bfloat16(extreme[i] / -8);
    memcpy(extreme + i, &bits, 4);
    inverse[i] = fabsf(extreme[i]) > 1e-30f ? 1 / extreme[i] : 0;
    ((uint16_t *)(out + BLOCK / 8 * LANES))[i] = bits >> 16;
  }
  for (int k = 0; k < BLOCK; k++)
    for (int i = 0; i < LANES; i++) {
      if (format == FLOAT32) memcpy(out + k * LANES + i, &w[k][i], 4);
      else if (format == BFLOAT16) out[k / 2 * LANES + i] |= to_bfloat16(w[k][i]) >> 16 << k % 2 * 16;
      else if (format == INT8) out[k / 4 * LANES + i] |= whole(w[k][i] / scale[i], 128) << k % 4 * 8;
      else {
        float code = w[k][i] * inverse[i];
        out[k % 16 / 4 * LANES + i] |= whole(code > 7 ? 7 : code, 8) << (k % 4 * 8 + k / 16 * 4);
      }
    }
}

void pack(int64_t format, const float *w, int64_t n_in, int64_t n_out, int64_t row, int64_t column, int64_t first,
          int64_t last, char *tiles, float *scales) {
  // Tiles first to last of a matrix [n_in, n_out], whose neighbours lie `row` and `column` numbers apart
  for (int64_t tile = first; tile < last; tile++) {
    char *out = tiles + tile * tile_bytes(format, n_in);
    float part[BLOCK][LANES], scale[LANES] = {0};
    word words[BLOCK * LANES];
    for (int finds_scales = format == INT8; finds_scales >= 0; finds_scales--)
      for (int64_t k = 0; k < n_in; k += BLOCK) {
        int64_t n = least(n_in - k, BLOCK), m = least(n_out - tile * LANES, LANES);
        const float *from = w + k * row + tile * LANES * column;
        memset(part, 0, sizeof(part));
        for (int64_t j = 0; j < n && column == 1 && m == LANES; j++) memcpy(part[j], from + j * row, 4 * LANES);
        for (int64_t i = 0; i < m && (column != 1 || m < LANES); i++)
          for (int64_t j = 0; j < n; j++) part[j][i] = from[i * column + j * row];
        if (finds_scales)
          for (int64_t j = 0; j < n; j++)
            for (int i = 0; i < LANES; i++) scale[i] = fabsf(part[j][i]) > scale[i] ? fabsf(part[j][i]) : scale[i];
        for (int i = 0; i < LANES && finds_scales && k + BLOCK >= n_in; i++) {
          scale[i] = scale[i] / 127;
          scale[i] = scales[tile * LANES + i] = scale[i] ? scale[i] : 1;
        }
        if (finds_scales) continue;
        if (format == FLOAT32) pack_part(FLOAT32, part, scale, words);
        if (format == BFLOAT16) pack_part(BFLOAT16, part, scale, words);
        if (format == INT8) pack_part(INT8, part, scale, words);
        if (format == INT4) pack_part(INT4, part, scale, words);
        memcpy(out, words, tile_bytes(format, n));
        out += tile_bytes(format, n);
      }
  }
}

// ---- What Python calls ----------------------------------------------------------------------------------------------

int64_t lanes(void) { return LANES; }

int64_t scratch_bytes(const GPT2 *m) { return scratch_of(m, 0).n_bytes; }

int64_t asleep(int64_t n_threads) {  // whether a thread must be woken for the next pass
  for (int64_t thread = 1; thread < n_threads; thread++)
    if (atomic_load(&threads[thread].state) == ASLEEP) return 1;
  return 0;
}

int64_t gpt2(GPT2 *m) {  // a pass, in this thread and in others that are awake or wake now; returns 0, or -1: no such token
  int64_t start = nanoseconds(), n = 1;
  for (int64_t row = 0; row < m->n_rows; row++)
    if (m->tokens[row] < 0 || m->tokens[row] >= m->n_vocab) return -1;
  work = m;
  for (; n < m->n_threads; n++) {
    int state = AWAKE;
    for (int64_t looks = 0; looks < PATIENCE && atomic_load(&threads[n].state) == ASLEEP; wait(++looks)) continue;
    if (!atomic_compare_exchange_strong(&threads[n].state, &state, CALLED)) break;
  }
  m->n_threads = n;
  for (int64_t thread = 1; thread < n; thread++) atomic_store(&threads[thread].state, WORK);
  m->waited = 0;
  forward(m, 0);
  m->took = nanoseconds() - start;
  return 0;
}

void partner(int64_t thread) {  // another thread's share of all passes, until there was none for a while
  atomic_store(&threads[thread].state, AWAKE);
  for (int64_t looks = 0;; wait(++looks)) {
    int state = AWAKE;
    if (atomic_load(&threads[thread].state) == WORK) {
      atomic_store(&threads[thread].state, AWAKE);
      forward(work, thread);
      looks = 0;
    } else if (looks > LOOKS + PATIENCE && atomic_compare_exchange_strong(&threads[thread].state, &state, ASLEEP)) return;
  }
}

void forget_threads(void) {  // in a forked process, into which they did not come along
  for (int thread = 0; thread < MOST_THREADS; thread++) atomic_store(&threads[thread].state, ASLEEP);
  atomic_store(&arrived, 0);
}
