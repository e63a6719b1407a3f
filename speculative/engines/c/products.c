// Rows times weights: a loop for each format.

// ---- A few rows times a part of a tile ------------------------------------------------------------------------------

// The loop that all formats have, in plain C, for the reader and for a test: x [R, n_in] times a tile [n_in, LANES] is
// added to out [R, LANES].
INLINE void times_plain(int R, const float *x, const float *tile, int64_t n_in, float *out) {
  for (int64_t k = 0; k < n_in; k++)
    for (int r = 0; r < R; r++)
      for (int c = 0; c < LANES; c++) {
        float *sum = &out[r * LANES + c];
        *sum = multiply_add(all(*sum), all(x[r * n_in + k]), all(tile[k * LANES + c]))[0];  // *sum + x * w
      }
}

// Each format has this loop in its own arithmetic. R is constant in each copy of it, so that the sums s[R][2] are
// registers, two for the channels of each row. x: the prepared rows of a group, a block after the other. out: rows that
// are `stride` floats apart. Meanwhile the loop asks for memory that is read later, from `ask` on: `pace` bytes for
// each 4 * LANES of the tile.
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define KEEP __asm__ volatile("" ::: "memory")  // weights are not read again, but stay in their registers

// In float32, written out. It gives the bits of times_plain: each sum is added up in the order of the inputs.
INLINE void times_float32(const int R, const word *x, const char *tile, int64_t n_in, const char *ask, int64_t pace,
                          float *out, int64_t stride) {
  vfloat s[MOST_ROWS][2];
  UNROLL for (int r = 0; r < R; r++) {
    s[r][0] = *(vfloat *)(out + r * stride);
    s[r][1] = *(vfloat *)(out + r * stride + V);
  }
  for (int64_t k = 0; k < n_in; k += BLOCK, x += BLOCK * R)  // a block of inputs, of R rows
    for (int64_t i = 0, end = least(BLOCK, n_in - k); i < end; i++, tile += 4 * LANES) {  // an input
      vfloat w0 = *(const vfloat *)tile, w1 = *(const vfloat *)(tile + 4 * V);
      __builtin_prefetch(ask, 0, LOCALITY);
      __builtin_prefetch(ask + pace / 2, 0, LOCALITY);
      ask += pace;
      KEEP;
      UNROLL for (int r = 0; r < R; r++) {
        const one_float *block = (const one_float *)(x + r * BLOCK);
        s[r][0] = multiply_add(s[r][0], all(block[i][0]), w0);
        s[r][1] = multiply_add(s[r][1], all(block[i][0]), w1);
      }
    }
  UNROLL for (int r = 0; r < R; r++) {
    *(vfloat *)(out + r * stride) = s[r][0];
    *(vfloat *)(out + r * stride + V) = s[r][1];
  }
}

// The other formats are this, abbreviated. An abbreviation uses the loop's own names, given at its end; `words` are
// those of a row's block.
#define ARGUMENTS \
  const word *x, const char *tile, int64_t n_in, const char *ask, int64_t pace, float *out, int64_t stride
#define EACH(r) UNROLL for (int r = 0; r < R; r++)  // R
#define OUT(r, i) (*(vfloat *)(out + (r) * stride + (i) * V))  // out, stride
#define LOAD_SUMS vfloat s[MOST_ROWS][2]; EACH(r) s[r][0] = OUT(r, 0), s[r][1] = OUT(r, 1)  // R, out, stride; makes s
#define STORE_SUMS EACH(r) OUT(r, 0) = s[r][0], OUT(r, 1) = s[r][1]  // s, R, out, stride
#define LOAD(type, i) (*(const type *)(tile + (i) * sizeof(type)))  // register i of the tile. tile
#define FLOAT(i) all(((const one_float *)(x + r * words))[i][0])  // word i of row r's block, in all lanes. x, r, words
#define INT(i) ((vint){0} + (int32_t)x[r * words + (i)])  // the same as whole numbers. x, r, words
#define PREFETCH(at) __builtin_prefetch(at, 0, LOCALITY)
#define ASK PREFETCH(ask), PREFETCH(ask + pace / 2), ask += pace; KEEP  // ask, pace

INLINE vfloat widen_float16(const char *tile) {  // [V] float16
#if defined(AVX512)
  return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)tile));
#elif defined(AVX2) && defined(__F16C__)
  return (vfloat)_mm256_cvtph_ps(_mm_loadu_si128((const void *)tile));
#elif defined(__aarch64__)
  return (vfloat)vcvt_f32_f16(vld1_f16((const void *)tile));
#else  // the exponent has another start and is scaled, which is right for tiny numbers too; of infinity it is all ones
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

// Both rounded formats add up a block's products exactly: see rows.c. Then they multiply the sum by the scales.
//
// An example of int8, with 4 inputs and one channel. A row of 1.5 -0.5 1 0 is prepared as 3 -1 2 0, times 0.5. Weights
// of 1 2 -3 0.5 are packed as 10 20 -30 5, times 0.1. The product is 0.5 * 0.1 * (3 * 10 - 1 * 20 - 2 * 30 + 0) = -2.5.
// With EXCESS 128 the tile has 138 148 98 133, and the sum begins with -128 * (3 - 1 + 2 + 0) = -512:
//   dot4 adds 3 * 138 - 1 * 148 + 2 * 98 + 0 * 133 = 462, which gives -50 as before;
//   with PAIRS an instruction adds two products, so it adds the inputs at even places, 3 * 138 + 2 * 98, then those at
//   odd places, -1 * 148 + 0 * 133. ADD_UP adds each such sum at once, as there is no register to keep it.
// The row's scale, 0.5, multiplies this sum of the block. The channel's, 0.1, multiplies the sum of all blocks.
#ifdef WIDE  // without dot4's instruction
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
typedef void Multiply(int64_t rows, ARGUMENTS);
static Multiply *const multiply_group[] = {FORMATS(MULTIPLY)};

static void multiply_by_amx(int64_t rows, ARGUMENTS), release_amx(void);  // amx.c, which comes last

INLINE int64_t n_groups(int64_t format, int64_t rows) { return (rows + most_rows(format) - 1) / most_rows(format); }

INLINE int64_t group_start(int64_t format, int64_t rows, int64_t group) {  // groups have as many rows each, or one more
  int64_t groups = n_groups(format, rows);
  return group * (rows / groups) + least(group, rows % groups);
}

// One row, few, a group, several groups: forward.py's tune has these four.
static int kind_of_rows(int64_t format, int64_t rows) {
  int64_t most = most_rows(format);
  return (rows > 1) + (rows > most / 2) + (rows > most);
}

typedef struct { const char *from; int64_t pace; } Asking;  // the memory that a loop asks for: see ASK

// A group that multiplies by a part of a tile, of so many bytes, asks for what is at some distance, if that is not 0.
// Of several groups the first few ask for the next part, each for its share.
static Asking asking(const char *at, int64_t bytes, int64_t group, int64_t groups, int64_t distance) {
  int64_t askers = least(groups, 4);
  if (!distance || group >= askers) return (Asking){at, 0};
  if (groups == 1) return (Asking){at + distance, 4 * LANES};
  return (Asking){at + bytes + group * (bytes / askers), 4 * LANES / askers};
}

// [rows, n_in] prepared, tile [n_in, LANES] -> [rows, LANES]. Several groups read a part of the tile one after the
// other, while it is in the first cache. ahead: see prefetch_bytes.
static void multiply_tile(const Linear *w, int64_t tile, const word *x, int64_t rows, const number *ahead, float *out) {
  enum { PART = 16384 };  // bytes
  int64_t n = w->n_in, f = w->format, groups = n_groups(f, rows);
  int64_t part = groups > 1 ? PART / part_bytes(f, BLOCK) * BLOCK : n, bytes = part_bytes(f, part);
  const char *at = w->tiles + tile * tile_bytes(f, n);
  Multiply *multiply = by_amx(f) ? multiply_by_amx : multiply_group[f];
  memset(out, 0, 4 * LANES * rows);
  for (int64_t k = 0; k < n; k += part, at += bytes)
    for (int64_t group = 0; group < groups; group++) {
      int64_t first = group_start(f, rows, group), R = group_start(f, rows, group + 1) - first;
      const word *rows_of_group = x + first * n_words(f, n) + n_words(f, k) * R;
      Asking ask = asking(at, bytes, group, groups, ahead[kind_of_rows(f, rows)]);
      multiply(R, rows_of_group, at, least(part, n - k), ask.from, ask.pace, out + first * LANES, LANES);
    }
}

// ---- A few rows times a matrix as a file has it ---------------------------------------------------------------------

// A file stores a matrix input by input, [n_in, n_out]. Packing takes as long as a dozen tokens, so a short run reads
// the matrix where it lies: INPUTS inputs of many channels, then the next ones. These are long rows, which memory gives
// as fast as tiles. The sums wait in the second cache meanwhile, and each is added up in the same order.
enum { SUMS = 1 << 15, AHEAD = 128, INPUTS = BLOCK / 2 };  // floats; bytes; at a time
int64_t floats_of_sums(void) { return SUMS; }

INLINE void times_in_order(const int R, ARGUMENTS) {  // times_float32, where the next input is `pace` bytes away
  enum { words = BLOCK };
  LOAD_SUMS;
  for (int64_t i = 0; i < n_in; i++, tile += pace, ask += pace) {
    vfloat w0 = LOAD(vfloat, 0), w1 = LOAD(vfloat, 1);
    PREFETCH(ask);
    KEEP;
    EACH(r) s[r][0] = multiply_add(s[r][0], FLOAT(i), w0), s[r][1] = multiply_add(s[r][1], FLOAT(i), w1);
  }
  STORE_SUMS;
}

COPIES_OF(, in_order)

// [rows, n_in] prepared, [n_in, n_tiles * LANES] of the matrix, from a tile on -> [rows, n_tiles * LANES]
static void multiply_file(const Linear *w, int64_t tile, int64_t n_tiles, const word *x, int64_t rows, float *out) {
  int64_t groups = n_groups(FLOAT32, rows), n = w->n_in, width = n_tiles * LANES;
  memset(out, 0, 4 * rows * width);
  for (int64_t k = 0; k < n; k += INPUTS)
    for (int64_t channel = 0; channel < width; channel += LANES) {
      const char *at = w->tiles + k * w->row_bytes + 4 * (tile * LANES + channel);
      for (int64_t group = 0; group < groups; group++) {
        int64_t first = group_start(FLOAT32, rows, group), R = group_start(FLOAT32, rows, group + 1) - first;
        const word *rows_of_group = x + first * n_words(FLOAT32, n) + k / BLOCK * BLOCK * R + k % BLOCK;
        float *sums = out + first * width + channel;
        multiply_in_order(R, rows_of_group, at, least(INPUTS, n - k), at + AHEAD, w->row_bytes, sums, width);
      }
    }
}

// ---- The weights of one channel, for the embedding ------------------------------------------------------------------

INLINE const float *scales_of(const Linear *w, int64_t tile) {  // [LANES]; 0 if the format has none
  const char *end = w->tiles + (tile + 1) * tile_bytes(w->format, w->n_in);
  return formats[w->format].scale_bytes ? (const float *)end - LANES : 0;
}

// Weight k of a channel, which is a lane of its tile. scale: the channel's. k is unsigned, as division is then quick.
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
#define CHANNEL_ARGUMENTS const char *tile, float scale, uint32_t lane, uint32_t from, uint32_t to, float *x
#define CHANNEL(number, name, ...) static void channel_##name(CHANNEL_ARGUMENTS) { \
    for (uint32_t k = from; k < to; k++) x[k] = weight_##name(tile, scale, lane, k); }
#define LOOK_UP(number, name, ...) channel_##name,
FORMATS(CHANNEL)
static void (*const look_up[])(CHANNEL_ARGUMENTS) = {FORMATS(LOOK_UP)};

static void read_channel(const Linear *w, int64_t channel, uint32_t from, uint32_t to, float *x) {  // -> x[from:to]
  int64_t tile = channel / LANES, lane = channel % LANES;
  const float *scales = scales_of(w, tile);
  look_up[w->format](w->tiles + tile * tile_bytes(w->format, w->n_in), scales ? scales[lane] : 1, lane, from, to, x);
}
