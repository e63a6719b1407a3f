// gpt2.py once more, in C: the same functions under the same names, for a few rows at a time, in several threads.
//
// A token costs the time to read every weight, and so do a window's K+1 rows if each weight is read once for them all:
//
//   tile   A weight [n_in, n_out] is stored as tiles of LANES neighbouring output channels (two vector registers), each
//          with all its inputs in order: [n_out / LANES, n_in, LANES]. A product reads a tile from front to back.
//   sums   Each pair (row, channel) has one sum, which stays in a register from the first input to the last.
//   order  out = ((x[0] w[0]) + x[1] w[1]) + x[2] w[2] ..., whatever the number of rows, and wherever a loop stops to
//          go on later. So no bit of a row depends on the rows beside it, on the threads, or on how a prompt is cut.
//
// Shapes are in comments, as in gpt2.py. Read it from the bottom up: forward is the whole network.

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

// V floats fill a register. A row has two registers of sums: of 32 registers (AVX-512 and ARM) 10 rows leave enough for
// weights and inputs, of 16 registers 5 rows do.
#if defined(__AVX512F__) && defined(__AVX512BW__)
#define AVX512
enum { V = 16, ROWS = 10 };
#elif defined(__AVX2__) && defined(__FMA__)
#define AVX2
enum { V = 8, ROWS = 5 };
#elif defined(__aarch64__)
enum { V = 4, ROWS = 10 };
#else
enum { V = 4, ROWS = 5 };
#endif
enum { LANES = 2 * V, BLOCK = 32, MOST_ROWS = 10 };  // BLOCK inputs of a row lie together, and share a scale if rounded
#define LOCALITY (FIRST_CACHE > 32768 ? 3 : 2)  // memory is asked for into the first cache [bytes], or the second

#define INLINE static inline __attribute__((always_inline))
#define VECTOR(type, size) type __attribute__((vector_size(size), aligned(sizeof(type)), may_alias))
typedef VECTOR(float, 4) single;
typedef VECTOR(float, 4 * V) vfloat;
typedef VECTOR(int32_t, 4 * V) vint;
typedef VECTOR(int16_t, 4 * V) vshort;
typedef VECTOR(uint8_t, 4 * V) vbyte;
typedef VECTOR(uint16_t, 4 * V) vpair;
typedef VECTOR(uint16_t, 2 * V) vhalf;

typedef uint32_t __attribute__((may_alias)) word;

INLINE vfloat all(float x) { return x - (vfloat){0}; }  // x + 0 would be an addition: it turns -0 into 0
INLINE vfloat choose(vint mask, vfloat a, vfloat b) { return (vfloat)((mask & (vint)a) | (~mask & (vint)b)); }

INLINE vfloat multiply_add(vfloat sum, vfloat a, vfloat b) {  // rounded once, if the CPU can
#if defined(AVX512)
  return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(AVX2)
  return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
  return (vfloat)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return sum + a * b;
#endif
}

// dot4 adds to each lane the products of 4 weights and 4 inputs, all int8. The instruction of x86 takes weights from 0
// to 255: EXCESS more than they are, and the products begin with EXCESS times the inputs taken away.
#if defined(__x86_64__)
enum { EXCESS = 128 };
#else
enum { EXCESS = 0 };
#endif

INLINE vint dot4(vint sum, vbyte w, vint x) {
#if defined(AVX512) && defined(__AVX512VNNI__)
  return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(AVX2) && defined(__AVXVNNI__)
  return (vint)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#elif defined(__ARM_FEATURE_DOTPROD)
  return (vint)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
#else
  for (int i = 0; i < 32; i += 8) sum += ((vint)w << (24 - i) >> 24) * (x << (24 - i) >> 24);
  return sum;
#endif
}

// Older x86 multiplies and adds in two instructions.
// WIDE: 16-bit numbers times 16-bit numbers, two neighbours added into 32 bits.
// SMALL: 4-bit weights times 8-bit inputs, two neighbours added into 16 bits. A block's sum is at most
// 16 * 15 * 127 = 30,480, so it cannot overflow.
#if defined(AVX512) && !defined(__AVX512VNNI__)
#define WIDE(w, x) (vint)_mm512_madd_epi16((__m512i)(w), (__m512i)(x))
#define SMALL(w, x) (vshort)_mm512_maddubs_epi16((__m512i)(w), (__m512i)(x))
#elif defined(AVX2) && !defined(__AVXVNNI__)
#define WIDE(w, x) (vint)_mm256_madd_epi16((__m256i)(w), (__m256i)(x))
#define SMALL(w, x) (vshort)_mm256_maddubs_epi16((__m256i)(w), (__m256i)(x))
#elif defined(__x86_64__) && !defined(AVX512) && !defined(AVX2)
#define WIDE(w, x) (vint)_mm_madd_epi16((__m128i)(w), (__m128i)(x))
#ifdef __SSSE3__
#define SMALL(w, x) (vshort)_mm_maddubs_epi16((__m128i)(w), (__m128i)(x))
#else
#define SMALL(w, x) (vshort)(((vshort)(w) & 255) * ((vshort)(x) << 8 >> 8) + ((vshort)(w) >> 8) * ((vshort)(x) >> 8))
#endif
#endif
#ifdef WIDE
enum { PAIRS = 1 };
#else
enum { PAIRS = 0 };
#endif

const char *instructions(void) {  // that the loops are compiled for
  if (V == 16) return PAIRS ? "AVX-512" : "AVX-512 with VNNI";
  if (V == 8) return PAIRS ? "AVX2" : "AVX2 with VNNI";
  return EXCESS ? "SSE" : ROWS == 10 ? "NEON" : "plain C";
}

int multiplies_bytes(void) {  // whether an instruction does: then a row in int8 costs less than in float32
  return !PAIRS && (V >= 8 || ROWS == 10);
}

// DOT2 adds the products of 2 bfloat16s, which are the upper halves of floats, and inputs i and i + 1 of a row. Without
// an instruction these are stored as floats.
#if defined(AVX512) && defined(__AVX512BF16__) && !defined(SLOW_DOT2)
#define DOT2(sum, w, i) (vfloat)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(w), (__m512bh)INT((i) / 2))
enum { BFLOAT16_BYTES = 2 };
#elif defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define DOT2(sum, w, i) (vfloat)vbfdotq_f32((float32x4_t)(sum), (bfloat16x8_t)(w), (bfloat16x8_t)INT((i) / 2))
enum { BFLOAT16_BYTES = 2 };
#else
#define LOW(w) (vfloat)((w) << 16)
#define HIGH(w) (vfloat)((w) & (int32_t)0xFFFF0000)
#define DOT2(sum, w, i) multiply_add(multiply_add(sum, FLOAT(i), LOW(w)), FLOAT((i) + 1), HIGH(w))
enum { BFLOAT16_BYTES = 4 };
#endif

// ---- The arguments of a pass: the keys of gpt2.py's nested dicts ----------------------------------------------------

// Every format: its number, its name in Python, the inputs and the bytes of one step of a channel, the bytes of a channel's
// own scale, the words of a row's block. For each name there are four functions: prepare_, times_, weight_ and pack_.
enum { INT8_WORDS = BLOCK / (PAIRS ? 2 : 4) + 2, INT4_WORDS = BLOCK / 4 + 2 };
#define FORMATS(F) \
  F(FLOAT32, float32, 1, 4, 0, BLOCK) \
  F(BFLOAT16, bfloat16, 2, 4, 0, BLOCK * BFLOAT16_BYTES / 4) \
  F(INT8, int8, BLOCK, BLOCK, 4, INT8_WORDS) \
  F(INT4, int4, BLOCK, BLOCK / 2 + 2, 0, INT4_WORDS) \
  F(FLOAT16, float16, 2, 4, 0, BLOCK)
#define ACTIVATIONS(F) F(GELU_NEW, gelu_new) F(GELU, gelu) F(RELU, relu)  // by their names in config.json
#define NUMBER(number, ...) number,
#define NAME(number, name, ...) #name " "
#define SIZES(number, name, ...) {__VA_ARGS__},
enum { FORMATS(NUMBER) };
enum { ACTIVATIONS(NUMBER) STORE, ADD };  // the use of a product
static const struct { int64_t inputs, bytes, scale_bytes, words; } formats[] = {FORMATS(SIZES)};
const char *format_names(void) { return FORMATS(NAME); }  // in the order of their numbers
const char *activation_names(void) { return ACTIVATIONS(NAME); }

// Python fills these structs by the names in their declarations, which it asks for: layout.py.
typedef intptr_t number;  // as large as an address
#define STRUCT(name, ...) \
  typedef struct { __VA_ARGS__ } name; \
  const char *layout_of_##name(void) { return #__VA_ARGS__; } \
  int64_t size_of_##name(void) { return sizeof(name); }
STRUCT(Linear,
  const float *b;
  number n_in, n_out, format;
  const char *tiles;  // or, if it is used where it lies in a file, the matrix [n_in, n_out] of floats
  number row_bytes;  // of such a matrix; 0 for tiles
)
STRUCT(Norm, const float *b, *g;)
STRUCT(Attn, Linear c_attn, c_proj;)
STRUCT(Mlp, Linear c_fc, c_proj;)
STRUCT(Block, Attn attn; Norm ln_1, ln_2; Mlp mlp;)
STRUCT(Scratch,  // a thread's own memory: prepared rows; a row; [rows, LANES], or SUMS; [ROWS, n_ctx up to whole tiles]
  word *prepared;
  float *row, *sums, *scores;
)
STRUCT(Text,  // rows of a text, after those of the texts before it in the same call
  number n_rows, n_past;  // n_past tokens of it are in its cache
  float *keys, *values;  // the cache: see attention
  const uint8_t *sees;  // [n_rows, sees_width] in a tree: the slots of the cache that a row attends to; else 0
  number sees_width;
)
STRUCT(GPT2,
  number n_head, n_embd, n_inner, n_ctx, n_vocab, activation, most_rows;
  const Block *blocks;
  const Linear *wte;  // [n_embd, n_vocab]
  const float *wpe;  // [n_ctx, n_embd]
  const Norm *ln_f;
  float *x, *qkv, *a, *hidden;  // [most_rows, n_embd], [., 3*n_embd], [., n_embd], [., n_inner]
  const Scratch *scratch;  // [n_threads]
  const number *prefetch_bytes;  // [4], by the number of rows: see multiply_tile
  // These are of one call:
  number n_threads, first_layer, end_layer, n_rows, n_last, n_texts;
  const int64_t *tokens, *positions;  // [n_rows]
  const Text *texts;  // [n_texts]
  float *logits;  // [n_last, n_vocab]
  number idle_ns, call_ns;  // nanoseconds that the first thread waited for others, and of the call
)

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t part_bytes(int format, int64_t n_in) {  // of a tile's weights
  return up(n_in, formats[format].inputs) / formats[format].inputs * formats[format].bytes * LANES;
}
int64_t tile_bytes(int64_t format, int64_t n_in) {  // the channels' scales follow the weights
  return part_bytes(format, n_in) + formats[format].scale_bytes * LANES;
}

// ---- Rows, as the products read them --------------------------------------------------------------------------------

// Up to ROWS rows are a group. It lies block by block, [n_in / BLOCK, rows, words of a block]: a loop over the inputs
// then reads its rows in order, at constant distances from one address.
static int64_t n_words(int format, int64_t n_in) { return up(n_in, BLOCK) / BLOCK * formats[format].words; }

INLINE word bits_of(float x) { return *(word *)&x; }
INLINE float float_of(word bits) { return *(float *)&bits; }
INLINE word to_bfloat16(float x) {  // to nearest, ties to even, in the upper half
  return (bits_of(x) + 0x7FFF + (bits_of(x) >> 16 & 1)) & 0xFFFF0000;
}

INLINE word whole(float x, int more) {  // the nearest whole number, plus more: beside 3 << 22 a fraction has no room
  return bits_of(x + (float)((3 << 22) + more)) - 0x4B400000;
}

static void prepare_float32(const float *x, word *out) { memcpy(out, x, 4 * BLOCK); }

static void prepare_float16(const float *x, word *out) { memcpy(out, x, 4 * BLOCK); }

static void prepare_bfloat16(const float *x, word *out) {
  for (int k = 0; k < BLOCK; k++)
    if (BFLOAT16_BYTES == 4) out[k] = to_bfloat16(x[k]);
    else ((uint16_t *)out)[k] = to_bfloat16(x[k]) >> 16;
}

static int32_t round_to_int8(const float *x, int32_t *numbers, word *scale) {
  // [BLOCK] -> whole numbers up to 127, times a scale. Returns their sum.
  int32_t most = 0, sum = 0;
  for (int k = 0; k < BLOCK; k++) {
    int32_t size = bits_of(x[k]) & 0x7FFFFFFF;
    most = size > most ? size : most;
  }
  float largest = float_of(most), inverse = largest > 1e-30f ? 127 / largest : 0;  // floats are in their bits' order
  for (int k = 0; k < BLOCK; k++) numbers[k] = whole(x[k] * inverse, 0);
  for (int k = 0; k < BLOCK; k++) sum += numbers[k];
  *scale = bits_of(largest / 127);
  return sum;
}

// Rounded rows end with their scale and the start of a sum of products: packed weights are larger than they stand for,
// by EXCESS in int8 and by 8 in int4, and this takes the excess times the row's numbers away.
static void prepare_int8(const float *x, word *out) {  // 4 numbers to a word, or 2: those at even places, then the others
  int32_t numbers[BLOCK], sum = round_to_int8(x, numbers, out + INT8_WORDS - 2);
  for (int k = 0; k < BLOCK; k++)
    if (PAIRS) ((int16_t *)out)[k % 2 * BLOCK / 2 + k / 2] = numbers[k];
    else ((int8_t *)out)[k] = numbers[k];
  out[INT8_WORDS - 1] = -EXCESS * sum;
}

static void prepare_int4(const float *x, word *out) {
  int32_t numbers[BLOCK], sum = round_to_int8(x, numbers, out + INT4_WORDS - 2);
  for (int k = 0; k < BLOCK; k++) ((int8_t *)out)[k] = numbers[k];
  word half = -4 * sum & 0xFFFF;  // where a lane has two sums of 16 bits, each begins with half
  out[INT4_WORDS - 1] = PAIRS ? half << 16 | half : (word)(-8 * sum);
}

#define PREPARE(number, name, ...) prepare_##name,
static void (*const prepare_block[])(const float *x, word *out) = {FORMATS(PREPARE)};

static void prepare(int format, const float *x, int64_t n, int64_t row, int64_t rows, word *group) {  // row of a group
  for (int64_t k = 0; k < n; k += BLOCK) {
    word *out = group + (k / BLOCK * rows + row) * formats[format].words;
    float part[BLOCK] = {0};
    if (n - k < BLOCK) memcpy(part, x + k, 4 * (n - k));
    prepare_block[format](n - k < BLOCK ? part : x + k, out);
  }
}

// ---- A few rows times a part of a tile ------------------------------------------------------------------------------

//     for (k < n_in) for (r < R) for (c < LANES) out[r][c] += x[r][k] * tile[k][c];
// Each format has this loop, in its own arithmetic: see times_float32 first. R is constant in each copy of it, so that
// the sums are registers. Meanwhile it asks for memory, from `ask` on: `pace` bytes for each 4 * LANES of the tile.
#define ARGUMENTS \
  const word *x, const char *tile, int64_t n_in, const char *ask, int64_t pace, float *out, int64_t stride
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define EACH(r) UNROLL for (int r = 0; r < R; r++)
#define FLOAT(i) all(((const single *)(x + r * words))[i][0])  // word i of a row's block, in all lanes
#define INT(i) ((vint){0} + (int32_t)x[r * words + (i)])
#define OUT(r, i) (*(vfloat *)(out + (r) * stride + (i) * V))
#define LOAD(type, i) (*(const type *)(tile + (i) * sizeof(type)))
#define LOAD_SUMS vfloat s[MOST_ROWS][2]; EACH(r) s[r][0] = OUT(r, 0), s[r][1] = OUT(r, 1)
#define STORE_SUMS EACH(r) OUT(r, 0) = s[r][0], OUT(r, 1) = s[r][1]
#define KEEP __asm__ volatile("" ::: "memory")  // weights are not read again, but stay in their registers
#define ASK __builtin_prefetch(ask, 0, LOCALITY), __builtin_prefetch(ask + pace / 2, 0, LOCALITY), ask += pace; KEEP

INLINE void times_float32(const int R, ARGUMENTS) {
  enum { words = BLOCK };
  LOAD_SUMS;
  for (int64_t k = 0; k < n_in; k += BLOCK, x += words * R)
    for (int64_t i = 0, end = least(BLOCK, n_in - k); i < end; i++, tile += 4 * LANES) {
      vfloat w0 = LOAD(vfloat, 0), w1 = LOAD(vfloat, 1);
      ASK;
      EACH(r) s[r][0] = multiply_add(s[r][0], FLOAT(i), w0), s[r][1] = multiply_add(s[r][1], FLOAT(i), w1);
    }
  STORE_SUMS;
}

INLINE vfloat widen_float16(const char *tile) {  // [V] float16
#if defined(AVX512)
  return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)tile));
#elif defined(AVX2) && defined(__F16C__)
  return (vfloat)_mm256_cvtph_ps(_mm_loadu_si128((const void *)tile));
#elif defined(__aarch64__)
  return (vfloat)vcvt_f32_f16(vld1_f16((const void *)tile));
#else  // the exponent has another start and is scaled, which is right for tiny numbers too; that of infinity is all ones
  vint h = __builtin_convertvector(LOAD(vhalf, 0), vint), infinite = (h & 0x7C00) == 0x7C00;
  vint size = (vint)((vfloat)((h & 0x7FFF) << 13) * 0x1p112f);
  return (vfloat)((h & 0x8000) << 16 | size | (infinite & 0x7F800000));
#endif
}

INLINE void times_float16(const int R, ARGUMENTS) {
  enum { words = BLOCK };
  LOAD_SUMS;
  for (int64_t k = 0; k < n_in; k += BLOCK, x += words * R)
    for (int64_t i = 0, end = least(BLOCK, n_in - k); i < end; i += 2, tile += 4 * LANES) {
      ASK;
      for (int j = 0; j < 2; j++) {
        vfloat w0 = widen_float16(tile + 2 * LANES * j), w1 = widen_float16(tile + 2 * LANES * j + 2 * V);
        EACH(r) s[r][0] = multiply_add(s[r][0], FLOAT(i + j), w0), s[r][1] = multiply_add(s[r][1], FLOAT(i + j), w1);
      }
    }
  STORE_SUMS;
}

INLINE void times_bfloat16(const int R, ARGUMENTS) {  // two inputs share 32 bits of the tile, the first in the lower 16
  enum { words = BLOCK * BFLOAT16_BYTES / 4 };
  LOAD_SUMS;
  for (int64_t k = 0; k < n_in; k += BLOCK, x += words * R)
    for (int64_t i = 0, end = least(BLOCK, n_in - k); i < end; i += 2, tile += 4 * LANES) {
      vint w0 = LOAD(vint, 0), w1 = LOAD(vint, 1);
      ASK;
      EACH(r) s[r][0] = DOT2(s[r][0], w0, i), s[r][1] = DOT2(s[r][1], w1, i);
    }
  STORE_SUMS;
}

// Both rounded formats add up a block's products exactly, and then multiply that sum by the scales.
#ifdef WIDE  // without dot4's instruction: added now, as there is no register for it later
#define ADD_UP(sum, more) sum += more; __asm__("" : "+x"(sum))
#define INT8S(w, odd) ((vpair)(w) >> 8 * (odd) & 255)
#define ADD_INT8(sum, w, x) ADD_UP(sum, WIDE(w, x))
#define ADD_INT4(sum, w, x) ADD_UP(sum, SMALL(w, x))
#define WIDEN(sum) WIDE(sum, (vshort){0} + 1)
typedef vshort sum_of_int4;
#else
#define INT8S(w, odd) ((w) ^ (EXCESS ? 0 : 128))
#define ADD_INT8(sum, w, x) sum = dot4(sum, w, x)
#define ADD_INT4 ADD_INT8
#define WIDEN(sum) sum
typedef vint sum_of_int4;
#endif

INLINE void times_int8(const int R, ARGUMENTS) {
  enum { words = INT8_WORDS };
  LOAD_SUMS;
  for (int64_t k = 0; k < n_in; k += BLOCK, x += words * R) {
    vint e[MOST_ROWS][2];
    EACH(r) e[r][0] = e[r][1] = INT(words - 1);
    UNROLL
    for (int i = 0; i < BLOCK / 4; i++, tile += 4 * LANES) {
      vbyte a = LOAD(vbyte, 0), b = LOAD(vbyte, 1);
      ASK;
      UNROLL
      for (int odd = 0; odd <= PAIRS; odd++) {
        vbyte w0 = (vbyte)INT8S(a, odd);
        vbyte w1 = (vbyte)INT8S(b, odd);
        EACH(r) {
          ADD_INT8(e[r][0], w0, INT(odd * BLOCK / 4 + i));
          ADD_INT8(e[r][1], w1, INT(odd * BLOCK / 4 + i));
        }
      }
    }
    EACH(r) for (int i = 0; i < 2; i++)
      s[r][i] = multiply_add(s[r][i], FLOAT(words - 2), __builtin_convertvector(e[r][i], vfloat));
  }
  STORE_SUMS;
}

INLINE void times_int4(const int R, ARGUMENTS) {  // inputs k and k + 16 share a byte, as 0 to 15: 8 more than they are
  enum { words = INT4_WORDS };
  LOAD_SUMS;
  for (int64_t k = 0; k < n_in; k += BLOCK, x += words * R, tile += 2 * sizeof(vhalf)) {
    sum_of_int4 e[MOST_ROWS][2];
    EACH(r) e[r][0] = e[r][1] = (sum_of_int4)INT(words - 1);
    UNROLL
    for (int i = 0; i < BLOCK / 8; i++, tile += 4 * LANES) {
      vbyte a = LOAD(vbyte, 0), b = LOAD(vbyte, 1);
      ASK;
      UNROLL
      for (int high = 0; high < 2; high++) {
        vbyte w0 = a >> 4 * high & 15, w1 = b >> 4 * high & 15;
        EACH(r) {
          ADD_INT4(e[r][0], w0, INT(high * BLOCK / 8 + i));
          ADD_INT4(e[r][1], w1, INT(high * BLOCK / 8 + i));
        }
      }
    }
    vfloat scale[2];  // of the block's weights: bfloat16s
    for (int i = 0; i < 2; i++) scale[i] = (vfloat)(__builtin_convertvector(LOAD(vhalf, i), vint) << 16);
    EACH(r) for (int i = 0; i < 2; i++) {
      vfloat total_int = __builtin_convertvector(WIDEN(e[r][i]), vfloat);
      s[r][i] = multiply_add(s[r][i], FLOAT(words - 2), scale[i] * total_int);
    }
  }
  STORE_SUMS;
}

#define COPY(name, R) case R: if (R <= ROWS) times_##name(R, x, tile, n_in, ask, pace, out, stride); return;
#define COPIES(name, R) COPY(name, R) COPY(name, R + 1) COPY(name, R + 2) COPY(name, R + 3) COPY(name, R + 4)
#define COPIES_OF(number, name, ...) \
  static void multiply_##name(int64_t rows, ARGUMENTS) { switch (rows) { COPIES(name, 1) COPIES(name, 6) } }
#define MULTIPLY(number, name, ...) multiply_##name,
FORMATS(COPIES_OF)
static void (*const multiply_group[])(int64_t rows, ARGUMENTS) = {FORMATS(MULTIPLY)};

static int64_t group_start(int64_t rows, int64_t group) {  // groups have as many rows each, or one more
  int64_t groups = (rows + ROWS - 1) / ROWS;
  return group * (rows / groups) + least(group, rows % groups);
}

static int kind_of_rows(int64_t rows) {  // one row, few, a group, several groups: forward.py's tune has these four
  return (rows > 1) + (rows > ROWS / 2) + (rows > ROWS);
}

static void multiply_tile(const Linear *w, int64_t tile, const word *x, int64_t rows, const number *ahead, float *out) {
  // [rows, n_in] prepared, tile [n_in, LANES] -> [rows, LANES]. Several groups read a part of the tile one after the
  // other, while it is in the first cache, and the first few ask for the next part, each for its share.
  enum { PART = 16384 };  // bytes
  int64_t groups = (rows + ROWS - 1) / ROWS, n = w->n_in, f = w->format;
  int64_t distance = ahead[kind_of_rows(rows)];
  int64_t part = groups > 1 ? PART / part_bytes(f, BLOCK) * BLOCK : n, bytes_of_part = part_bytes(f, part);
  int64_t askers = least(groups, 4), pace = 4 * LANES / askers, share = bytes_of_part / askers;
  const char *at = w->tiles + tile * tile_bytes(f, n);
  memset(out, 0, 4 * LANES * rows);
  for (int64_t k = 0; k < n; k += part, at += bytes_of_part)
    for (int64_t group = 0; group < groups; group++) {
      int asks = distance && group < askers;
      int64_t first = group_start(rows, group), m = group_start(rows, group + 1) - first;
      const char *ask = asks ? at + (groups > 1 ? bytes_of_part + group * share : distance) : at;
      multiply_group[f](m, x + first * n_words(f, n) + n_words(f, k) * m, at, least(part, n - k), ask, asks ? pace : 0,
                        out + first * LANES, LANES);
    }
}

// ---- A few rows times a matrix as a file has it ---------------------------------------------------------------------

// A file stores a matrix input by input, [n_in, n_out]. Packing takes as long as a dozen tokens, so a short run reads the
// matrix where it lies: INPUTS inputs of many channels, then the next ones. These are long rows, which memory gives as
// fast as tiles. The sums wait in the second cache meanwhile. Each is added up in the same order, so to the same bits.
enum { SUMS = 1 << 15, AHEAD = 128, INPUTS = BLOCK / 2 };  // floats; bytes; at a time

INLINE void times_in_order(const int R, ARGUMENTS) {  // times_float32, where the next input is `pace` bytes away
  enum { words = BLOCK };
  LOAD_SUMS;
  for (int64_t i = 0; i < n_in; i++, tile += pace, ask += pace) {
    vfloat w0 = LOAD(vfloat, 0), w1 = LOAD(vfloat, 1);
    __builtin_prefetch(ask, 0, LOCALITY);
    KEEP;
    EACH(r) s[r][0] = multiply_add(s[r][0], FLOAT(i), w0), s[r][1] = multiply_add(s[r][1], FLOAT(i), w1);
  }
  STORE_SUMS;
}

COPIES_OF(, in_order)

static void multiply_file(const Linear *w, int64_t tile, int64_t n_tiles, const word *x, int64_t rows, float *out) {
  // [rows, n_in] prepared, [n_in, n_tiles * LANES] of the matrix, from a tile on -> [rows, n_tiles * LANES]
  int64_t groups = (rows + ROWS - 1) / ROWS, n = w->n_in, width = n_tiles * LANES;
  memset(out, 0, 4 * rows * width);
  for (int64_t k = 0; k < n; k += INPUTS)
    for (int64_t channel = 0; channel < width; channel += LANES) {
      const char *at = w->tiles + k * w->row_bytes + 4 * (tile * LANES + channel);
      for (int64_t group = 0; group < groups; group++) {
        int64_t first = group_start(rows, group), m = group_start(rows, group + 1) - first;
        const word *rows_of_group = x + first * n_words(FLOAT32, n) + k / BLOCK * BLOCK * m + k % BLOCK;
        float *sums = out + first * width + channel;
        multiply_in_order(m, rows_of_group, at, least(INPUTS, n - k), at + AHEAD, w->row_bytes, sums, width);
      }
    }
}

// ---- The functions of gpt2.py ---------------------------------------------------------------------------------------

INLINE vfloat exp_(vfloat x) {  // for x <= 0: 2**n e**r, where r is small; 0 below -87
  const float magic = 3 << 22;
  vint tiny = x < all(-87);
  vfloat y = choose(tiny, all(-87), x), shifted = y * 1.44269504f + magic, n = shifted - magic;
  vfloat r = multiply_add(multiply_add(y, n, all(-355 / 512.0f)), n, all(2.1219444e-4f));  // y - n log(2)
  vfloat s = all(1 / 720.0f);
  static const float series[] = {1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 1 / 2.0f, 1, 1};
  for (int i = 0; i < 6; i++) s = multiply_add(all(series[i]), r, s);
  vint power = ((vint)shifted - 0x4B400000 + 127) << 23;  // 2**n: the exponent's bits
  return (vfloat)((vint)(s * (vfloat)power) & ~tiny);
}

INLINE vfloat gelu(vfloat x) {  // 0.5 x (1 + tanh z) = max(x, 0) - |x| e / (1 + e) with e = e**(-2|z|)
  vfloat z = 0.7978845608f * (x + 0.044715f * x * x * x), size = (vfloat)((vint)x & 0x7FFFFFFF);
  vfloat e = exp_((vfloat)((vint)(2 * z) | INT32_MIN));
  return (vfloat)((vint)x & ~((vint)x >> 31)) - size * e / (1 + e);
}

static float total(const float *x, const float *y, int64_t n) {  // of x * y, or of x, in an order that n alone decides
  vfloat s[4] = {{0}};
  float sum = 0;
  int64_t i = 0;
  for (; i + 4 * V <= n; i += 4 * V)
    for (int j = 0; j < 4 * V; j += V)
      s[j / V] = multiply_add(s[j / V], *(vfloat *)(x + i + j), y ? *(vfloat *)(y + i + j) : all(1));
  s[0] = (s[0] + s[1]) + (s[2] + s[3]);
  for (int lane = 0; lane < V; lane++) sum += s[0][lane];
  for (; i < n; i++) sum += y ? x[i] * y[i] : x[i];
  return sum;
}

static void layer_norm(const float *x, Norm ln, int64_t n, float *out) {  // [n] -> [n]
  float mean = total(x, 0, n) / n;
  for (int64_t i = 0; i < n; i++) out[i] = x[i] - mean;
  float inverse = 1 / sqrtf(total(out, out, n) / n + 1e-5f);
  for (int64_t i = 0; i < n; i++) out[i] = ln.g[i] * (out[i] * inverse) + ln.b[i];
}

// ---- Threads --------------------------------------------------------------------------------------------------------

// Python's threads each do a share of the tiles and heads, and meet at a barrier before one reads what others wrote.
// One that waits spins, then yields its core in each turn. Without work for many turns it goes back to Python to sleep.
enum { MOST_THREADS = 256, SPINS = 50, YIELDS = 4000 };  // turns until then
enum { ASLEEP, AWAKE, CALLED, WORK };
static struct { _Alignas(64) _Atomic int state; } threads[MOST_THREADS];
static _Alignas(64) _Atomic int64_t arrived;  // threads at the barrier
static _Alignas(64) _Atomic int64_t met;  // barriers passed
static _Alignas(64) GPT2 *work;

static int64_t nanoseconds(void) {
  struct timespec now;
  return timespec_get(&now, TIME_UTC), now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void idle(int64_t turns) {  // `wait` is a function of macOS
  if (turns > SPINS) sched_yield();
#if defined(__x86_64__)
  else _mm_pause();
#elif defined(__aarch64__)
  else __asm__ volatile("yield");
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
  for (int64_t turns = 0; atomic_load_explicit(&met, memory_order_acquire) == before; idle(++turns))
    if (turns == SPINS && thread == 0) since = nanoseconds();
  if (since) m->idle_ns += nanoseconds() - since;
}

// ---- The functions of gpt2.py, of which each thread does its share --------------------------------------------------

// Weight k of a tile's channel, of which `scale` is that of the channel; k is unsigned, as division is then quick.
#define WEIGHT(name) INLINE float weight_##name(const char *tile, float scale, uint32_t lane, uint32_t k)
WEIGHT(float32) { return ((const float *)tile)[k * LANES + lane]; }
WEIGHT(float16) { return widen_float16(tile + (k * LANES + lane / V * V) * 2)[lane % V]; }
WEIGHT(bfloat16) { return float_of((word)((const uint16_t *)tile)[(k / 2 * LANES + lane) * 2 + k % 2] << 16); }
WEIGHT(int8) { return (((const uint8_t *)tile)[(k / 4 * LANES + lane) * 4 + k % 4] - 128) * scale; }
WEIGHT(int4) {
  const char *block = tile + k / BLOCK * part_bytes(INT4, BLOCK);
  word scale_bits = ((const uint16_t *)(block + BLOCK / 2 * LANES))[lane];
  int code = ((const uint8_t *)block)[(k % 16 / 4 * LANES + lane) * 4 + k % 4] >> k % BLOCK / 16 * 4 & 15;
  return (code - 8) * float_of(scale_bits << 16);
}
#define COLUMN_ARGUMENTS const char *tile, float scale, uint32_t lane, uint32_t from, uint32_t to, float *x
#define COLUMN(number, name, ...) static void column_##name(COLUMN_ARGUMENTS) { \
    for (uint32_t k = from; k < to; k++) x[k] = weight_##name(tile, scale, lane, k); }
#define LOOK_UP(number, name, ...) column_##name,
FORMATS(COLUMN)
static void (*const look_up[])(COLUMN_ARGUMENTS) = {FORMATS(LOOK_UP)};

INLINE const float *scales_of(const Linear *w, int64_t tile) {  // [LANES]; 0 if the format has none
  const char *end = w->tiles + (tile + 1) * tile_bytes(w->format, w->n_in);
  return formats[w->format].scale_bytes ? (const float *)end - LANES : 0;
}

static void embed(const GPT2 *m, int64_t thread) {  // x = wte[tokens] + wpe[positions]; a thread has some columns
  const Linear *w = m->wte;
  uint32_t from = thread * m->n_embd / m->n_threads, to = (thread + 1) * m->n_embd / m->n_threads;
  for (int64_t row = 0; row < m->n_rows; row++) {
    int64_t tile = m->tokens[row] / LANES, lane = m->tokens[row] % LANES;
    const float *scales = scales_of(w, tile), *position = m->wpe + m->positions[row] * m->n_embd;
    float *x = m->x + row * m->n_embd;
    look_up[w->format](w->tiles + tile * tile_bytes(w->format, w->n_in), scales ? scales[lane] : 1, lane, from, to, x);
    for (uint32_t k = from; k < to; k++) x[k] += position[k];
  }
}

INLINE void finish(const float *sums, const float *scale, const float *b, int then, int n, float *out) {
  // [LANES] -> out [n]: times the channels' scales, plus their biases, through the activation or added to out
  float y[LANES];
  memcpy(y, sums, 4 * LANES);
  if (scale) for (int i = 0; i < n; i++) y[i] *= scale[i];
  if (b) for (int i = 0; i < n; i++) y[i] += b[i];
  if (then == ADD) for (int i = 0; i < n; i++) y[i] += out[i];
  if (then == GELU_NEW) for (int i = 0; i < LANES; i += V) *(vfloat *)(y + i) = gelu(*(vfloat *)(y + i));
  if (then == GELU) for (int i = 0; i < n; i++) y[i] = 0.5f * y[i] * (1 + erff(y[i] * 0.70710678f));
  if (then == RELU) for (int i = 0; i < n; i++) y[i] = y[i] < 0 ? 0 : y[i];
  memcpy(out, y, 4 * n);
}

static const word *prepare_rows(GPT2 *m, int64_t thread, const float *x, int64_t rows, const Norm *ln,
                                const Linear *w) {
  // [rows, n_in], or their layer norm -> groups of rows in the weight's format. Few rows each thread prepares for
  // itself, in about the time of a barrier; many all for all.
  enum { FEW = 8192 };  // numbers
  int64_t n = m->n_threads, n_in = w->n_in, f = w->format;
  int64_t alone = n == 1 || rows * n_in <= FEW;
  float *normed = m->scratch[thread].row;
  word *prepared = m->scratch[alone ? thread : 0].prepared;
  for (int64_t group = 0, first = 0, end; first < rows; group++, first = end) {
    end = group_start(rows, group + 1);
    for (int64_t row = first; row < end; row++) {
      if (!alone && row % n != thread) continue;
      if (ln) layer_norm(x + row * n_in, *ln, n_in, normed);
      prepare(f, ln ? normed : x + row * n_in, n_in, row - first, end - first, prepared + first * n_words(f, n_in));
    }
  }
  if (!alone) meet(m, thread);
  return prepared;
}

static void finish_tiles(const float *sums, int64_t rows, const Linear *w, int64_t tile, int64_t n_tiles, int then,
                         float *out) {  // [rows, n_tiles * LANES] -> these channels of out [rows, n_out]
  for (int64_t row = 0; row < rows; row++)
    for (int64_t end = tile + n_tiles, i = tile; i < end; i++, sums += LANES) {
      int64_t first = i * LANES, left = w->n_out - first;
      const float *scale = scales_of(w, i), *b = w->b ? w->b + first : 0;
      float *to = out + row * w->n_out + first;
      if (left >= LANES) finish(sums, scale, b, then, LANES, to);  // a constant, for which it has a copy
      else finish(sums, scale, b, then, left, to);
    }
}

static void linear(GPT2 *m, int64_t thread, const float *x, int64_t rows, const Norm *ln, const Linear *w, int then,
                   float *out) {
  // [rows, n_in] -> [rows, n_out]: (layer norm of) x @ w + b; a thread has some of the tiles
  const word *prepared = prepare_rows(m, thread, x, rows, ln, w);
  float *sums = m->scratch[thread].sums;
  int64_t n = m->n_threads, n_tiles = (w->n_out + LANES - 1) / LANES;
  int64_t most = w->row_bytes ? least(SUMS / (rows * LANES), n_tiles) : 1;  // tiles at a time
  for (int64_t tile = thread * n_tiles / n, end = (thread + 1) * n_tiles / n, some; tile < end; tile += some) {
    some = least(most, end - tile);
    if (w->row_bytes) multiply_file(w, tile, some, prepared, rows, sums);
    else multiply_tile(w, tile, prepared, rows, m->prefetch_bytes, sums);
    finish_tiles(sums, rows, w, tile, some, then, out);
  }
}

static float softmax(float *scores, int64_t n, int64_t room, const uint8_t *sees, float *path) {
  // [room] -> e**(score - max) of the first n, 0 for unseen tokens; returns their sum. A row of a tree adds them
  // up along its path, without gaps: so its bits are those of the same text as a chain.
  for (int64_t j = 0; j < n && sees; j++) scores[j] = sees[j] ? scores[j] : -INFINITY;
  for (int64_t j = n; j < room; j++) scores[j] = -INFINITY;
  vfloat most = *(vfloat *)scores, sums = {0};
  for (int64_t j = V; j < room; j += V) most = choose(*(vfloat *)(scores + j) > most, *(vfloat *)(scores + j), most);
  float largest = most[0], sum = 0;
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
  for (int64_t j = 0; j < n; j += V) sums += *(vfloat *)(scores + j);
  for (int lane = 0; lane < V; lane++) sum += sums[lane];
  return sum;
}

static void attention(const GPT2 *m, Text t, const float *qkv, Scratch own, int64_t layer, int64_t head, float *a) {
  // Adds a text's keys and values to its cache, for a head; then each row attends to all up to its own. Keys lie as
  // tiles [n_ctx / LANES, d, LANES], values as [d / LANES, n_ctx, LANES]: both products are those of a weight. What a
  // row does not see has the probability 0, which changes no bit. qkv, a: of the text's rows.
  int64_t n_embd = m->n_embd, d = n_embd / m->n_head, room = up(m->n_ctx, LANES), place = layer * m->n_head + head;
  float *keys = t.keys + place * room * d, *values = t.values + place * m->n_ctx * up(d, LANES);
  float shrink = 1 / sqrtf(d), totals[ROWS];
  for (int64_t row = 0; row < t.n_rows; row++) {
    const float *k = qkv + row * 3 * n_embd + n_embd + head * d, *v = k + n_embd;
    int64_t slot = t.n_past + row;
    for (int64_t i = 0; i < d; i++) keys[(slot / LANES * d + i) * LANES + slot % LANES] = k[i];
    for (int64_t i = 0; i < d; i++) values[(i / LANES * m->n_ctx + slot) * LANES + i % LANES] = v[i];
  }
  for (int64_t first = 0; first < t.n_rows; first += ROWS) {
    int64_t rows = least(t.n_rows - first, ROWS), seen = t.n_past + first + rows;
    for (int64_t row = 0; row < rows; row++) {
      const float *q = qkv + (first + row) * 3 * n_embd + head * d;
      for (int64_t i = 0; i < d; i++) own.row[i] = q[i] * shrink;
      prepare(FLOAT32, own.row, d, row, rows, own.prepared);
      memset(own.scores + row * room, 0, 4 * up(seen, LANES));
    }
    for (int64_t slot = 0; slot < seen; slot += LANES) {  // q @ k: [rows, d] -> [rows, seen]
      const char *tile = (const char *)(keys + slot * d);
      multiply_float32(rows, own.prepared, tile, d, tile, 0, own.scores + slot, room);
    }
    for (int64_t row = 0; row < rows; row++) {
      const uint8_t *sees = t.sees ? t.sees + (first + row) * t.sees_width : 0;
      float *scores = own.scores + row * room;
      totals[row] = softmax(scores, t.n_past + first + row + 1, up(seen, LANES), sees, own.row);
      prepare(FLOAT32, scores, seen, row, rows, own.prepared);
    }
    for (int64_t i = 0; i < d; i += LANES) {  // weights @ v: [rows, seen] -> [rows, d]
      const char *tile = (const char *)(values + i * m->n_ctx);
      memset(own.sums, 0, 4 * LANES * rows);
      multiply_float32(rows, own.prepared, tile, seen, tile, 0, own.sums, LANES);
      for (int64_t row = 0; row < rows; row++)
        for (int64_t j = 0; j < least(LANES, d - i); j++)
          a[(first + row) * n_embd + head * d + i + j] = own.sums[row * LANES + j] / totals[row];
    }
  }
}

static void mha(GPT2 *m, int64_t thread, int64_t layer, const Attn *attn, const Norm *ln) {  // x += ...
  linear(m, thread, m->x, m->n_rows, ln, &attn->c_attn, STORE, m->qkv);  // -> [n_rows, 3*n_embd]
  meet(m, thread);
  for (int64_t head = thread * m->n_head / m->n_threads; head < (thread + 1) * m->n_head / m->n_threads; head++)
    for (int64_t text = 0, row = 0; text < m->n_texts; row += m->texts[text++].n_rows)  // -> [n_rows, n_embd]
      attention(m, m->texts[text], m->qkv + row * 3 * m->n_embd, m->scratch[thread], layer, head, m->a + row * m->n_embd);
  meet(m, thread);
  linear(m, thread, m->a, m->n_rows, 0, &attn->c_proj, ADD, m->x);
}

static void ffn(GPT2 *m, int64_t thread, const Mlp *mlp, const Norm *ln) {  // x += ...
  linear(m, thread, m->x, m->n_rows, ln, &mlp->c_fc, m->activation, m->hidden);  // -> [n_rows, n_inner]
  meet(m, thread);
  linear(m, thread, m->hidden, m->n_rows, 0, &mlp->c_proj, ADD, m->x);
}

static void forward(GPT2 *m, int64_t thread) {  // [n_rows] -> logits [n_last, n_vocab]
  embed(m, thread);
  meet(m, thread);
  for (int64_t layer = m->first_layer; layer < m->end_layer; layer++) {
    const Block *block = &m->blocks[layer];
    mha(m, thread, layer, &block->attn, &block->ln_1);
    meet(m, thread);
    ffn(m, thread, &block->mlp, &block->ln_2);
    meet(m, thread);
  }
  const float *x = m->x + (m->n_rows > m->n_last ? m->n_rows - m->n_last : 0) * m->n_embd;  // [n_last, n_embd]
  if (m->n_last) linear(m, thread, x, m->n_last, m->ln_f, m->wte, STORE, m->logits);
  meet(m, thread);  // after this the caller may change m
}

// ---- The functions that Python calls -------------------------------------------------------------------------------

int64_t lanes(void) { return LANES; }
int64_t rows_of_a_group(void) { return ROWS; }
int64_t floats_of_sums(void) { return SUMS; }

#define RESULTS(F) F(DONE, done) F(OTHERS_ASLEEP, others_asleep) F(NO_SUCH_TOKEN, no_such_token) F(NO_ROOM, no_room)
enum { RESULTS(NUMBER) };  // of a call
const char *result_names(void) { return RESULTS(NAME); }

static int check(const GPT2 *m) {  // Refuses a call that would read or write outside the arrays.
  int64_t rows = 0;
  for (int64_t text = 0; text < m->n_texts; rows += m->texts[text++].n_rows)
    if (m->texts[text].n_past + m->texts[text].n_rows > m->n_ctx) return NO_ROOM;
  if (rows != m->n_rows || rows > m->most_rows || m->n_last > m->most_rows) return NO_ROOM;
  for (int64_t row = 0; row < rows; row++)
    if (m->tokens[row] < 0 || m->tokens[row] >= m->n_vocab) return NO_SUCH_TOKEN;
  return DONE;
}

// A pass, in this thread and in others. Returns DONE, or the reason why nothing was done: if others are asleep, the caller
// should wake them. With `patient` it waits a little for them, and goes on without those that do not come.
int64_t gpt2(GPT2 *m, int64_t patient) {
  int64_t start = nanoseconds(), n = 1, refused = check(m);
  if (refused) return refused;
  for (int64_t thread = 1; thread < m->n_threads && !patient; thread++)
    if (atomic_load(&threads[thread].state) == ASLEEP) return OTHERS_ASLEEP;
  work = m;
  for (; n < m->n_threads; n++) {
    int state = AWAKE;
    for (int64_t turns = 0; turns < YIELDS && atomic_load(&threads[n].state) == ASLEEP; idle(++turns)) continue;
    if (!atomic_compare_exchange_strong(&threads[n].state, &state, CALLED)) break;
  }
  m->n_threads = n;
  m->idle_ns = 0;
  for (int64_t thread = 1; thread < n; thread++) atomic_store(&threads[thread].state, WORK);
  forward(m, 0);
  m->call_ns = nanoseconds() - start;
  return DONE;
}

void worker(int64_t thread) {  // another thread's share of all passes, until there was none for a while
  int asleep = ASLEEP, awake = AWAKE;
  if (!atomic_compare_exchange_strong(&threads[thread].state, &asleep, AWAKE)) return;  // it is at work already
  for (int64_t turns = 0;; idle(++turns), awake = AWAKE) {
    if (atomic_load(&threads[thread].state) == WORK) {
      atomic_store(&threads[thread].state, AWAKE);
      forward(work, thread);
      turns = 0;
    } else if (turns > YIELDS && atomic_compare_exchange_strong(&threads[thread].state, &awake, ASLEEP)) return;
  }
}

void all_asleep(void) {  // in a forked child, which has no other threads; between two passes
  for (int thread = 0; thread < MOST_THREADS; thread++) atomic_store(&threads[thread].state, ASLEEP);
}
