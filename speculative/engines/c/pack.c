// Weights as engine.c reads them: a matrix in the order of NumPy -> tiles. This file is what is compiled.
#include "engine.c"

static void take_block(const float *w, int64_t n, int64_t m, int64_t row, int64_t column, float block[][LANES]) {
  // [n, m] of a matrix -> [n, LANES], filled up with zeros
  if (m < LANES) memset(block, 0, 4 * n * LANES);
  if (column == 1 && m == LANES) for (int64_t k = 0; k < n; k++) memcpy(block[k], w + k * row, 4 * LANES);
  else for (int64_t i = 0; i < m; i++) for (int64_t k = 0; k < n; k++) block[k][i] = w[i * column + k * row];
}

INLINE void pack_block(const int format, float w[BLOCK][LANES], const float *scale, word *out) {
  // [BLOCK, LANES] -> the same of a tile. An int4's scale, here found, makes the extreme weight -8.
  float extreme[LANES] = {0}, inverse[LANES];
  memset(out, 0, 4 * BLOCK * LANES);
  for (int k = 0; k < BLOCK && format == INT4; k++)
    for (int i = 0; i < LANES; i++) extreme[i] = fabsf(w[k][i]) > fabsf(extreme[i]) ? w[k][i] : extreme[i];
  for (int i = 0; i < LANES && format == INT4; i++) {
    word bits = to_bfloat16(extreme[i] / -8);
    inverse[i] = fabsf(float_of(bits)) > 1e-30f ? 1 / float_of(bits) : 0;
    ((uint16_t *)(out + BLOCK / 8 * LANES))[i] = bits >> 16;
  }
  for (int k = 0; k < BLOCK; k++)
    for (int i = 0; i < LANES; i++) {
      float code = format == INT4 ? w[k][i] * inverse[i] : w[k][i] / scale[i];
      if (format == BFLOAT16) out[k / 2 * LANES + i] |= to_bfloat16(w[k][i]) >> 16 << k % 2 * 16;
      if (format == FLOAT16) ((_Float16 *)out)[k * LANES + i] = w[k][i];
      if (format == INT8) out[k / 4 * LANES + i] |= whole(code, 128) << k % 4 * 8;
      if (format == INT4) out[k % 16 / 4 * LANES + i] |= whole(code > 7 ? 7 : code, 8) << (k % 4 * 8 + k / 16 * 4);
    }
}

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

static void pack_tiles(int64_t f, const float *w, int64_t n_in, int64_t n_out, int64_t row, int64_t column,
                       int64_t first, int64_t end, char *tiles) {  // tiles first to end - 1
  float block[BLOCK][LANES];
  word words[BLOCK * LANES];
  int64_t bytes = tile_bytes(f, n_in), weights = part_bytes(f, n_in);
  for (int64_t k = 0; k < n_in && f == INT8; k += BLOCK)  // the largest weights, in the places of the scales
    for (int64_t tile = first; tile < end; tile++) {
      int64_t n = least(n_in - k, BLOCK), m = least(n_out - tile * LANES, LANES);
      float *scale = (float *)(tiles + tile * bytes + weights);
      if (k == 0) memset(scale, 0, 4 * LANES);
      take_block(w + k * row + tile * LANES * column, n, m, row, column, block);
      for (int j = 0; j < n; j++)
        for (int i = 0; i < LANES; i++) scale[i] = fabsf(block[j][i]) > scale[i] ? fabsf(block[j][i]) : scale[i];
    }
  for (int64_t tile = first; tile < end && f == INT8; tile++) {
    float *scale = (float *)(tiles + tile * bytes + weights);
    for (int i = 0; i < LANES; i++) scale[i] = scale[i] / 127 ? scale[i] / 127 : 1;  // the largest weight is 127
  }
  for (int64_t k = 0; k < n_in; k += BLOCK)
    for (int64_t tile = first; tile < end; tile++) {
      int64_t n = least(n_in - k, BLOCK), m = least(n_out - tile * LANES, LANES);
      const float *from = w + k * row + tile * LANES * column, *scale = (float *)(tiles + tile * bytes + weights);
      char *out = tiles + tile * bytes + part_bytes(f, k);
      if (f == FLOAT32 && column == 1 && m == LANES) {
        for (int64_t j = 0; j < n; j++) stream(from + j * row, 4 * LANES, out + 4 * LANES * j);
        continue;
      }
      if (n < BLOCK) memset(block, 0, sizeof(block));
      take_block(from, n, m, row, column, block);
      if (f == BFLOAT16) pack_block(BFLOAT16, block, scale, words);
      if (f == FLOAT16) pack_block(FLOAT16, block, scale, words);
      if (f == INT8) pack_block(INT8, block, scale, words);
      if (f == INT4) pack_block(INT4, block, scale, words);
      stream(f == FLOAT32 ? (void *)block : (void *)words, part_bytes(f, n), out);
    }
}

void pack(int64_t f, const float *w, int64_t n_in, int64_t n_out, int64_t row, int64_t column, char *tiles) {
  // [n_in, n_out], whose strides are `row` and `column`. Some tiles lie side by side in the matrix's rows: a block of
  // inputs is packed for them all before the next. Those of a transposed matrix do not.
  int64_t n_tiles = (n_out + LANES - 1) / LANES, some = column == 1 ? 8 : 1;
  for (int64_t first = 0; first < n_tiles; first += some)
    pack_tiles(f, w, n_in, n_out, row, column, first, least(first + some, n_tiles), tiles);
}

const char *instructions(void) {  // that the loops are compiled for
  if (V == 16) return PAIRS ? "AVX-512" : "AVX-512 with VNNI";
  if (V == 8) return PAIRS ? "AVX2" : "AVX2 with VNNI";
  return EXCESS ? "SSE" : ROWS == 10 ? "NEON" : "plain C";
}
