// Weights as products.c reads them: a matrix in the order of NumPy -> tiles.

typedef struct {
  const float *w;  // a matrix [n_in, n_out] in NumPy's memory
  int64_t n_in, n_out;
  int64_t in_stride, out_stride;  // floats from an input to the next, and from an output channel to the next
  char *tiles;  // [n_tiles, tile_bytes], which are written
} Matrix;

static const float *weights_from(const Matrix *m, int64_t k, int64_t tile) {  // of input k and the tile's first channel
  return m->w + k * m->in_stride + tile * LANES * m->out_stride;
}

// n inputs from k on of a tile's channels -> [n, LANES], filled up with zeros.
static void take_block(const Matrix *m, int64_t k, int64_t n, int64_t tile, float block[][LANES]) {
  const float *w = weights_from(m, k, tile);
  int64_t some = least(m->n_out - tile * LANES, LANES), in = m->in_stride, out = m->out_stride;
  if (some < LANES) memset(block, 0, 4 * n * LANES);
  if (out == 1 && some == LANES) for (int64_t j = 0; j < n; j++) {
    memcpy(block[j], w + j * in, 4 * LANES);
    for (int64_t i = 0; i < LANES; i += 16)  // of the next block: no processor asks ahead for so many rows
      __builtin_prefetch(w + (n + j) * in + i);
  }
  else for (int64_t i = 0; i < some; i++) for (int64_t j = 0; j < n; j++) block[j][i] = w[i * out + j * in];
}

INLINE word to_float16(float x) {  // to nearest, ties to even; what is too large becomes infinite
  word size = bits_of(x) & 0x7FFFFFFF, sign = bits_of(x) >> 16 & 0x8000, not_a_number = size > 0x7F800000;
  word tiny = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);  // beside .5 a fraction has as much room as there
  word normal = (size - (112 << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
  word large = not_a_number ? 0x7E00 : 0x7C00;
  return sign | (size < 113 << 23 ? tiny : size < 143 << 23 ? normal : large);
}

// [BLOCK, LANES] weights -> the same of a tile, `out`, which is 0 before. scale: [LANES], of int8's channels.
#define PACK(name) \
  static void pack_##name(float w[restrict BLOCK][LANES], const float *restrict scale, word *restrict out)
#define EACH_WEIGHT for (int k = 0; k < BLOCK; k++) for (int i = 0; i < LANES; i++)
PACK(float32) { memcpy(out, w, 4 * BLOCK * LANES); }
PACK(float16) { EACH_WEIGHT ((uint16_t *)out)[k * LANES + i] = to_float16(w[k][i]); }
PACK(bfloat16) { EACH_WEIGHT out[k / 2 * LANES + i] |= to_bfloat16(w[k][i]) >> 16 << k % 2 * 16; }
PACK(int8) { EACH_WEIGHT out[k / 4 * LANES + i] |= whole(w[k][i] / scale[i], 128) << k % 4 * 8; }
PACK(int4) {  // a block's scale, here computed, makes its extreme weight -8
  float extreme[LANES] = {0}, inverse[LANES];
  EACH_WEIGHT extreme[i] = fabsf(w[k][i]) > fabsf(extreme[i]) ? w[k][i] : extreme[i];
  for (int i = 0; i < LANES; i++) {
    word bits = to_bfloat16(extreme[i] / -8);
    inverse[i] = fabsf(float_of(bits)) > 1e-30f ? 1 / float_of(bits) : 0;
    ((uint16_t *)(out + BLOCK / 8 * LANES))[i] = bits >> 16;
  }
  EACH_WEIGHT {
    float code = w[k][i] * inverse[i];
    out[k % 16 / 4 * LANES + i] |= whole(code > 7 ? 7 : code, 8) << (k % 4 * 8 + k / 16 * 4);
  }
}
#define PACK_BLOCK(number, name, ...) pack_##name,
static void (*const pack_block[])(float w[BLOCK][LANES], const float *scale, word *out) = {FORMATS(PACK_BLOCK)};

INLINE void stream(const void *from, int64_t bytes, char *to) {  // past the caches, which need not read `to` first
#if defined(AVX512)
  for (int64_t i = 0; i < bytes; i += 64) _mm512_stream_si512((void *)(to + i), _mm512_loadu_si512((char *)from + i));
#elif defined(AVX2)
  for (int64_t i = 0; i < bytes; i += 32)
    _mm256_stream_si256((void *)(to + i), _mm256_loadu_si256((void *)((char *)from + i)));
#else
  memcpy(to, from, bytes);
#endif
}

enum { MOST_TILES = 8 };  // that are packed side by side: what is scanned for scales is still in a cache then

static float *scales_at(const Matrix *m, int64_t f, int64_t tile) {  // [LANES], if the format has scales
  return (float *)(m->tiles + tile * tile_bytes(f, m->n_in) + part_bytes(f, m->n_in));
}

INLINE word larger(word size, float x) {  // without their signs, floats are in the order of their bits
  word other = bits_of(x) & 0x7FFFFFFF;
  return other > size ? other : size;
}

static void scale_channels(const Matrix *m, int64_t f, int64_t first, int64_t end) {  // the largest weight becomes 127
  word largest[MOST_TILES * LANES] = {0};
  const float *w = weights_from(m, 0, first);
  int64_t n = least(m->n_out, end * LANES) - first * LANES, in = m->in_stride, out = m->out_stride;
  if (out == 1) for (int64_t k = 0; k < m->n_in; k++) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(w + (k + 4) * in + i);
    for (int64_t i = 0; i < n; i++) largest[i] = larger(largest[i], w[k * in + i]);
  }
  else for (int64_t i = 0; i < n; i++) for (int64_t k = 0; k < m->n_in; k++)
    largest[i] = larger(largest[i], w[i * out + k * in]);
  for (int64_t tile = first; tile < end; tile++)
    for (int i = 0; i < LANES; i++) {
      float scale = float_of(largest[(tile - first) * LANES + i]) / 127;
      scales_at(m, f, tile)[i] = scale ? scale : 1;
    }
}

static void pack_tiles(const Matrix *m, int64_t f, int64_t first, int64_t end) {  // tiles first to end - 1
  float block[BLOCK][LANES];
  word words[BLOCK * LANES];
  if (formats[f].scale_bytes) scale_channels(m, f, first, end);
  for (int64_t k = 0; k < m->n_in; k += BLOCK)
    for (int64_t tile = first; tile < end; tile++) {
      int64_t n = least(m->n_in - k, BLOCK);
      char *out = m->tiles + tile * tile_bytes(f, m->n_in) + part_bytes(f, k);
      if (f == FLOAT32 && m->out_stride == 1 && m->n_out - tile * LANES >= LANES) {  // as they lie there
        const float *from = weights_from(m, k, tile);
        for (int64_t j = 0; j < n; j++) stream(from + j * m->in_stride, 4 * LANES, out + 4 * LANES * j);
        continue;
      }
      if (n < BLOCK) memset(block, 0, sizeof(block));
      take_block(m, k, n, tile, block);
      memset(words, 0, part_bytes(f, BLOCK));
      pack_block[f](block, formats[f].scale_bytes ? scales_at(m, f, tile) : 0, words);
      stream(words, part_bytes(f, n), out);
    }
}

// A matrix [n_in, n_out] with these strides -> its tiles in format f. Some tiles lie side by side in the matrix's rows:
// a block of inputs is packed for them all before the next. Those of a transposed matrix do not.
void pack(int64_t f, const float *w, int64_t n_in, int64_t n_out, int64_t in_stride, int64_t out_stride, char *tiles) {
  Matrix matrix = {w, n_in, n_out, in_stride, out_stride, tiles};
  int64_t n_tiles = (n_out + LANES - 1) / LANES, some = out_stride == 1 ? MOST_TILES : 1;
  for (int64_t first = 0; first < n_tiles; first += some)
    pack_tiles(&matrix, f, first, least(first + some, n_tiles));
}
