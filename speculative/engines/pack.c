// Weights as engine.c reads them: a matrix in the order of NumPy -> tiles. This file is what is compiled.
#include "engine.c"

INLINE void pack_block(const int format, float w[BLOCK][LANES], const float *scale, word *out) {
  // [BLOCK, LANES] -> the same of a tile. An int4's scale, here found, makes the extreme weight -8.
  float extreme[LANES] = {0}, inverse[LANES];
  memset(out, 0, 4 * BLOCK * LANES);
  for (int k = 0; k < BLOCK && format == INT4; k++)
    for (int i = 0; i < LANES; i++) extreme[i] = fabsf(w[k][i]) > fabsf(extreme[i]) ? w[k][i] : extreme[i];
  for (int i = 0; i < LANES && format == INT4; i++) {
    word bits = to_bfloat16(extreme[i] / -8);
    memcpy(extreme + i, &bits, 4);
    inverse[i] = fabsf(extreme[i]) > 1e-30f ? 1 / extreme[i] : 0;
    ((uint16_t *)(out + BLOCK / 8 * LANES))[i] = bits >> 16;
  }
  for (int k = 0; k < BLOCK; k++)
    for (int i = 0; i < LANES; i++) {
      float code = format == INT4 ? w[k][i] * inverse[i] : w[k][i] / scale[i];
      if (format == FLOAT32) out[k * LANES + i] = bits_of(w[k][i]);
      if (format == BFLOAT16) out[k / 2 * LANES + i] |= to_bfloat16(w[k][i]) >> 16 << k % 2 * 16;
      if (format == INT8) out[k / 4 * LANES + i] |= whole(code, 128) << k % 4 * 8;
      if (format == INT4) out[k % 16 / 4 * LANES + i] |= whole(code > 7 ? 7 : code, 8) << (k % 4 * 8 + k / 16 * 4);
    }
}

void pack(int64_t f, const float *w, int64_t n_in, int64_t n_out, int64_t row, int64_t column, int64_t first,
          int64_t last, char *tiles, float *scales) {
  // Tiles first to last of a matrix [n_in, n_out], whose neighbours lie `row` and `column` numbers apart
  for (int64_t tile = first; tile < last; tile++) {
    int64_t m = least(n_out - tile * LANES, LANES);
    float part[BLOCK][LANES], scale[LANES] = {0};
    word words[BLOCK * LANES];
    for (int finds_scale = f == INT8; finds_scale >= 0; finds_scale--) {
      char *out = tiles + tile * tile_bytes(f, n_in);
      for (int64_t k = 0, n; k < n_in; k += BLOCK, out += tile_bytes(f, n)) {
        const float *from = w + k * row + tile * LANES * column;
        n = least(n_in - k, BLOCK);
        memset(part, 0, sizeof(part));
        for (int64_t j = 0; j < n && column == 1 && m == LANES; j++) memcpy(part[j], from + j * row, 4 * LANES);
        for (int64_t i = 0; i < m && (column != 1 || m < LANES); i++)
          for (int64_t j = 0; j < n; j++) part[j][i] = from[i * column + j * row];
        for (int64_t j = 0; j < n && finds_scale; j++)
          for (int i = 0; i < LANES; i++) scale[i] = fabsf(part[j][i]) > scale[i] ? fabsf(part[j][i]) : scale[i];
        if (finds_scale) continue;
        if (f == FLOAT32) pack_block(FLOAT32, part, scale, words);
        if (f == BFLOAT16) pack_block(BFLOAT16, part, scale, words);
        if (f == INT8) pack_block(INT8, part, scale, words);
        if (f == INT4) pack_block(INT4, part, scale, words);
        memcpy(out, words, tile_bytes(f, n));
      }
      for (int i = 0; i < LANES && finds_scale; i++)
        scale[i] = scales[tile * LANES + i] = scale[i] / 127 ? scale[i] / 127 : 1;
    }
  }
}
