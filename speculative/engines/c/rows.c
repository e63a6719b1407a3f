// Rows as the products read them.

INLINE int by_amx(int64_t format) { return format == BFLOAT16 && has_amx(); }
INLINE int64_t most_rows(int64_t format) { return by_amx(format) ? AMX_ROWS : ROWS; }  // of a group
int64_t rows_of_a_group(int64_t format) { return most_rows(format); }  // for Python

// A group lies block by block, [n_in / BLOCK, rows, words of a block]: a loop over the inputs then reads its rows in
// order, at constant distances from one address.
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
  int in_pairs = BFLOAT16_BYTES == 2 || has_amx();
  for (int k = 0; k < BLOCK; k++)
    if (in_pairs) ((uint16_t *)out)[k] = to_bfloat16(x[k]) >> 16;
    else out[k] = to_bfloat16(x[k]);
}

// Both rounded formats, int8 and int4, add up the products of a block exactly, and then multiply the sum by the scales.
// How they add up depends on the CPU (cpu.h):
//
//   CPU                    EXCESS  PAIRS  int8: products are added by                int4
//   x86 with VNNI          128     0      dot4's instruction, of unsigned weights    dot4
//   x86 without            128     1      WIDE, of numbers widened to 16 bits        SMALL, and WIDE for a block's sum
//   ARM with dot products  0       0      dot4's instruction, of signed weights      dot4
//   another                0       0      dot4 in plain C                            dot4

// [BLOCK] -> whole numbers up to 127, times a scale. Returns their sum.
static int32_t round_to_int8(const float *x, int32_t *numbers, word *scale) {
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
// 4 numbers to a word, or 2: then those at even places come first.
static void prepare_int8(const float *x, word *out) {
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

// [n] -> the row with this number in a group of `rows` rows.
static void prepare(int format, const float *x, int64_t n, int64_t row, int64_t rows, word *group) {
  for (int64_t k = 0; k < n; k += BLOCK) {
    word *out = group + (k / BLOCK * rows + row) * formats[format].words;
    float part[BLOCK] = {0};
    if (n - k < BLOCK) memcpy(part, x + k, 4 * (n - k));
    prepare_block[format](n - k < BLOCK ? part : x + k, out);
  }
}
