// gpt2.py once more, in C: the same functions under the same names, for a few rows at a time, in several threads.
//
// A token costs the time to read every weight, and so do a window's K+1 rows if each weight is read once for them all:
//
//   tile   A weight [n_in, n_out] is stored as tiles of LANES neighbouring output channels (two vector registers), each
//          with all its inputs in order: [n_out / LANES, n_in, LANES]. A product reads a tile from front to back.
//   sums   Each pair (row, channel) has one sum, which stays in a register from the first input to the last.
//   order  out = ((x[0] w[0]) + x[1] w[1]) + x[2] w[2] ..., whatever the number of rows, and wherever a loop stops to
//          go on later. So no bit of a row depends on the rows beside it, on the threads, or on how a prompt is cut.
//          (AMX has an order of its own, of which the same is true: amx.c.)
//
// Read it from the bottom up: gpt2 is the whole network. Every thread calls it, with its number `thread` and the same
// m: the model, and the rows of this pass (arguments.h). A thread computes some of the columns, heads or tiles of all
// rows, and waits at a barrier (threads.c) before it reads what others have written.
//
// Shapes are in comments, as in gpt2.py, of which a function here differs in two ways:
//
//   inputs    linear takes prepared rows (rows.c): prepare_rows makes them, on the way through the layer norm.
//   outputs   linear writes its product as it is, through the activation, or adds it to the residual stream.
//
// A vfloat is a register of V floats, and LANES = 2 V. They, all and choose are in cpu.h, which comes first.

// ---- The functions of gpt2.py ---------------------------------------------------------------------------------------

INLINE vfloat exp_(vfloat x) {  // e**x = 2**n e**r for x <= 0, where r is small; 0 for x < -87
  // Adding 1.5 * 2**23 rounds to a whole number, which is then in the low bits. log(2) is split into a short part and
  // the rest, so that n log(2) loses no digits.
  const float to_low_bits = 3 << 22;
  const int32_t its_bits = 0x4B400000, bias = 127, mantissa_bits = 23;
  vint is_tiny = x < all(-87);
  x = choose(is_tiny, all(-87), x);
  vfloat shifted = x * 1.44269504f + to_low_bits;  // x / log(2), rounded
  vfloat n = shifted - to_low_bits;
  vfloat r = multiply_add(multiply_add(x, n, all(-355 / 512.0f)), n, all(2.1219444e-4f));  // x - n log(2)
  static const float series[] = {1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 1 / 2.0f, 1, 1};
  vfloat e_to_r = all(1 / 720.0f);
  for (int i = 0; i < 6; i++) e_to_r = multiply_add(all(series[i]), r, e_to_r);
  vint two_to_n = ((vint)shifted - its_bits + bias) << mantissa_bits;  // a float of which this is the exponent
  return (vfloat)((vint)(e_to_r * (vfloat)two_to_n) & ~is_tiny);
}

INLINE vfloat abs_(vfloat x) { return (vfloat)((vint)x & 0x7FFFFFFF); }  // without the sign's bit
INLINE vfloat max_0(vfloat x) { return (vfloat)((vint)x & ~((vint)x >> 31)); }  // 0 if the sign's bit is set

INLINE vfloat gelu(vfloat x) {  // 0.5 x (1 + tanh z) = max(x, 0) - |x| e / (1 + e) with e = e**(-2|z|)
  vfloat z = 0.7978845608f * (x + 0.044715f * x * x * x);
  vfloat e = exp_(-2 * abs_(z));
  return max_0(x) - abs_(x) * e / (1 + e);
}

// The sum of x * y, or of x if y is 0. [n] -> a number; the order of the additions depends on n alone.
static float dot(const float *x, const float *y, int64_t n) {
  vfloat s[4] = {{0}};  // four sums side by side, as each addition waits for the one before
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
  float mean = dot(x, 0, n) / n;
  for (int64_t i = 0; i < n; i++) out[i] = x[i] - mean;
  float inverse = 1 / sqrtf(dot(out, out, n) / n + 1e-5f);
  for (int64_t i = 0; i < n; i++) out[i] = ln.g[i] * (out[i] * inverse) + ln.b[i];
}

// ---- x = wte[inputs] + wpe[positions], and x[len(x) - n_last:] ------------------------------------------------------

static int64_t position_of(const Text *t, int64_t row) {  // in the text; of a row in a tree, on its path
  if (!t->sees) return t->n_past + row;
  const uint8_t *sees = t->sees + row * t->sees_width;
  uint32_t n = 0;  // slots that it attends to, its own among them
  for (int64_t slot = 0; slot < t->n_past + t->n_rows; slot++) n += sees[slot];
  return (int64_t)n - 1;
}

static void embed(const GPT2 *m, int64_t thread) {  // -> x [n_rows, n_embd]; a thread computes some columns
  const Linear *w = m->wte;
  uint32_t from = thread * m->n_embd / m->n_threads, to = (thread + 1) * m->n_embd / m->n_threads;
  float *x = m->x;
  for (const Text *t = m->texts; t < m->texts + m->n_texts; t++)
    for (int64_t row = 0; row < t->n_rows; row++, x += m->n_embd) {
      const float *wpe = m->wpe + position_of(t, row) * m->n_embd;
      read_channel(w, t->tokens[row], from, to, x);
      for (uint32_t k = from; k < to; k++) x[k] += wpe[k];
    }
}

static void take_last(const GPT2 *m, int64_t thread) {  // each text's last n_last rows -> last_block [n_wanted, n_embd]
  int64_t n = m->n_embd, wanted = 0;
  const float *x = m->x;
  for (const Text *t = m->texts; t < m->texts + m->n_texts; t++) {
    for (int64_t row = t->n_rows - t->n_last; row < t->n_rows; row++, wanted++)
      if (wanted % m->n_threads == thread) memcpy(m->last_block + wanted * n, x + row * n, 4 * n);
    x += t->n_rows * n;
  }
}

// ---- linear ---------------------------------------------------------------------------------------------------------

// [rows, n_in], or their layer norm if ln is not 0 -> the same as products of this format read them. Few rows each
// thread prepares for itself, in about the time of a barrier; of many each thread prepares some, for all.
static const word *prepare_rows(GPT2 *m, int64_t thread, const float *x, int64_t rows, const Norm *ln,
                                const Linear *w) {
  enum { FEW = 8192 };  // numbers
  int64_t n = m->n_threads, n_in = w->n_in, f = w->format;
  int64_t alone = n == 1 || rows * n_in <= FEW;
  float *normed = m->scratch[thread].row;
  word *prepared = m->scratch[alone ? thread : 0].prepared;
  for (int64_t group = 0, first = 0, end; first < rows; group++, first = end) {
    end = group_start(f, rows, group + 1);
    for (int64_t row = first; row < end; row++) {
      if (!alone && row % n != thread) continue;
      if (ln) layer_norm(x + row * n_in, *ln, n_in, normed);
      prepare(f, ln ? normed : x + row * n_in, n_in, row - first, end - first, prepared + first * n_words(f, n_in));
    }
  }
  if (!alone) barrier(m, thread);
  return prepared;
}

// [LANES] -> out [n]: times the channels' scales, plus their biases, then through the activation or added to out.
INLINE void finish(const float *sums, const float *scale, const float *b, int use, int n, float *out) {
  float y[LANES];
  memcpy(y, sums, 4 * LANES);
  if (scale) for (int i = 0; i < n; i++) y[i] *= scale[i];
  if (b) for (int i = 0; i < n; i++) y[i] += b[i];
  if (use == ADD) for (int i = 0; i < n; i++) y[i] += out[i];
  if (use == GELU_NEW) for (int i = 0; i < LANES; i += V) *(vfloat *)(y + i) = gelu(*(vfloat *)(y + i));
  if (use == GELU) for (int i = 0; i < n; i++) y[i] = 0.5f * y[i] * (1 + erff(y[i] * 0.70710678f));
  if (use == RELU) for (int i = 0; i < n; i++) y[i] = y[i] < 0 ? 0 : y[i];
  memcpy(out, y, 4 * n);
}

// Sums [rows, n_tiles * LANES] of the tiles from `tile` on -> these channels of out [rows, n_out].
static void finish_tiles(const float *sums, int64_t rows, const Linear *w, int64_t tile, int64_t n_tiles, int use,
                         float *out) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t end = tile + n_tiles, i = tile; i < end; i++, sums += LANES) {
      int64_t first = i * LANES, left = w->n_out - first;
      const float *scale = scales_of(w, i), *b = w->b ? w->b + first : 0;
      float *to = out + row * w->n_out + first;
      if (left >= LANES) finish(sums, scale, b, use, LANES, to);  // a constant, for which it has a copy
      else finish(sums, scale, b, use, left, to);
    }
}

// x @ w + b: [rows, n_in], prepared -> out [rows, n_out]; a thread computes some of the tiles.
static void linear(GPT2 *m, int64_t thread, const word *x, int64_t rows, const Linear *w, int use, float *out) {
  float *sums = m->scratch[thread].sums;
  int64_t n = m->n_threads, n_tiles = (w->n_out + LANES - 1) / LANES;
  int64_t most = w->row_bytes ? least(SUMS / (rows * LANES), n_tiles) : 1;  // tiles at a time
  for (int64_t tile = thread * n_tiles / n, end = (thread + 1) * n_tiles / n, some; tile < end; tile += some) {
    some = least(most, end - tile);
    if (w->row_bytes) multiply_file(w, tile, some, x, rows, sums);
    else multiply_tile(w, tile, x, rows, m->prefetch_bytes, sums);
    finish_tiles(sums, rows, w, tile, some, use, out);
  }
}

// ---- attention ------------------------------------------------------------------------------------------------------

// softmax without its division, which attention makes later: [room] -> e**(score - max) of the first n slots, 0 for
// those that the row does not see. Returns their sum. A row of a tree adds them up along its path, without gaps: so its
// bits are those of the same text as a chain. path: [room] of memory.
static float exp_and_sum(float *scores, int64_t n, int64_t room, const uint8_t *sees, float *path) {
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

// A text's cache of a head. Keys are stored as tiles [n_ctx / LANES, d, LANES], values as [d / LANES, n_ctx, LANES], so
// that both products of attention are those of a weight in float32.
typedef struct { float *keys, *values; int64_t d, n_ctx; } HeadCache;

static HeadCache head_cache(const GPT2 *m, Text t, int64_t layer, int64_t head) {
  int64_t d = m->n_embd / m->n_head, before = layer * m->n_head + head;
  float *keys = t.keys + before * up(m->n_ctx, LANES) * d, *values = t.values + before * m->n_ctx * up(d, LANES);
  return (HeadCache){keys, values, d, m->n_ctx};
}

// qkv [n_rows, 3*n_embd]: the keys and values of a text's rows, which come after the first n_past slots.
static void append_to_cache(HeadCache c, Text t, const float *qkv, int64_t n_embd, int64_t head) {
  for (int64_t row = 0; row < t.n_rows; row++) {
    const float *k = qkv + row * 3 * n_embd + n_embd + head * c.d, *v = k + n_embd;
    int64_t slot = t.n_past + row;
    float *keys = c.keys + slot / LANES * LANES * c.d + slot % LANES, *values = c.values + slot * LANES;
    for (int64_t i = 0; i < c.d; i++) keys[i * LANES] = k[i];
    for (int64_t i = 0; i < c.d; i += LANES) memcpy(values + i * c.n_ctx, v + i, 4 * least(LANES, c.d - i));
  }
}

// Meanwhile it asks for as much of the cache that is read next, from `ask` on: the caches of heads and texts are short
// pieces of memory, in which a CPU does not look ahead by itself.
static void multiply_by_cache(int64_t rows, const word *x, const float *tile, int64_t n, const float *ask, float *out,
                              int64_t stride) {
  multiply_float32(rows, x, (const char *)tile, n, (const char *)ask, 4 * LANES, out, stride);
}

// Each row of a text attends, in a head, to all slots up to its own. What a row does not see has the weight 0, which
// changes no bit. next: the cache that this thread reads after it. qkv [n_rows, 3*n_embd] -> a [n_rows, n_embd]: rows of
// this text.
static void attention(const GPT2 *m, Text t, const float *qkv, Scratch own, int64_t layer, int64_t head, HeadCache next,
                      float *a) {
  int64_t n_embd = m->n_embd, d = n_embd / m->n_head, room = up(m->n_ctx, LANES);
  HeadCache cache = head_cache(m, t, layer, head);
  float inverse_root = 1 / sqrtf(d), totals[ROWS];  // totals: of e**(score - max), by which a row's output is divided
  append_to_cache(cache, t, qkv, n_embd, head);
  for (int64_t first = 0; first < t.n_rows; first += ROWS) {
    int64_t rows = least(t.n_rows - first, ROWS), seen = t.n_past + first + rows;
    for (int64_t row = 0; row < rows; row++) {  // q / sqrt(d)
      const float *q = qkv + (first + row) * 3 * n_embd + head * d;
      for (int64_t i = 0; i < d; i++) own.row[i] = q[i] * inverse_root;
      prepare(FLOAT32, own.row, d, row, rows, own.prepared);
      memset(own.scores + row * room, 0, 4 * up(seen, LANES));
    }
    for (int64_t slot = 0; slot < seen; slot += LANES)  // q @ k: [rows, d] -> [rows, seen]
      multiply_by_cache(rows, own.prepared, cache.keys + slot * d, d, next.keys + slot * d, own.scores + slot, room);
    for (int64_t row = 0; row < rows; row++) {  // softmax
      const uint8_t *sees = t.sees ? t.sees + (first + row) * t.sees_width : 0;
      float *scores = own.scores + row * room;
      totals[row] = exp_and_sum(scores, t.n_past + first + row + 1, up(seen, LANES), sees, own.row);
      prepare(FLOAT32, scores, seen, row, rows, own.prepared);
    }
    for (int64_t i = 0; i < d; i += LANES) {  // weights @ v: [rows, seen] -> [rows, d]
      memset(own.sums, 0, 4 * LANES * rows);
      multiply_by_cache(rows, own.prepared, cache.values + i * m->n_ctx, seen, next.values + i * m->n_ctx, own.sums, LANES);
      for (int64_t row = 0; row < rows; row++)
        for (int64_t j = 0; j < least(LANES, d - i); j++)
          a[(first + row) * n_embd + head * d + i + j] = own.sums[row * LANES + j] / totals[row];
    }
  }
}

// x += mha(layer_norm(x))
static void mha(GPT2 *m, int64_t thread, int64_t layer, const Attn *attn, const Norm *ln_1) {
  const word *x = prepare_rows(m, thread, m->x, m->n_rows, ln_1, &attn->c_attn);
  linear(m, thread, x, m->n_rows, &attn->c_attn, STORE, m->qkv);  // [n_rows, n_embd] -> [n_rows, 3*n_embd]
  barrier(m, thread);
  const Text *t = m->texts;
  const float *qkv = m->qkv;
  float *to = m->a;  // [n_rows, n_embd]
  for (int64_t i = thread, n = m->n_texts * m->n_head; i < n; i += m->n_threads) {  // head i % n_head of a text
    for (; t < m->texts + i / m->n_head; t++) {
      qkv += t->n_rows * 3 * m->n_embd;
      to += t->n_rows * m->n_embd;
    }
    int64_t next = least(i + m->n_threads, n - 1);
    HeadCache next_cache = head_cache(m, m->texts[next / m->n_head], layer, next % m->n_head);
    attention(m, *t, qkv, m->scratch[thread], layer, i % m->n_head, next_cache, to);
  }
  barrier(m, thread);
  const word *a = prepare_rows(m, thread, m->a, m->n_rows, 0, &attn->c_proj);
  linear(m, thread, a, m->n_rows, &attn->c_proj, ADD, m->x);
}

// ---- The other functions of gpt2.py ---------------------------------------------------------------------------------

// x += ffn(layer_norm(x))
static void ffn(GPT2 *m, int64_t thread, const Mlp *mlp, const Norm *ln_2) {
  const word *x = prepare_rows(m, thread, m->x, m->n_rows, ln_2, &mlp->c_fc);
  linear(m, thread, x, m->n_rows, &mlp->c_fc, m->activation, m->hidden);  // [n_rows, n_embd] -> [n_rows, n_inner]
  barrier(m, thread);
  const word *hidden = prepare_rows(m, thread, m->hidden, m->n_rows, 0, &mlp->c_proj);
  linear(m, thread, hidden, m->n_rows, &mlp->c_proj, ADD, m->x);
}

static void transformer_block(GPT2 *m, int64_t thread, int64_t layer) {  // [n_rows, n_embd] -> [n_rows, n_embd]
  const Block *block = &m->blocks[layer];
  mha(m, thread, layer, &block->attn, &block->ln_1);
  barrier(m, thread);
  ffn(m, thread, &block->mlp, &block->ln_2);
  barrier(m, thread);
}

static void gpt2(GPT2 *m, int64_t thread) {  // [n_rows] -> logits [n_wanted, n_vocab]
  embed(m, thread);
  barrier(m, thread);
  for (int64_t layer = m->first_layer; layer < m->end_layer; layer++) transformer_block(m, thread, layer);
  if (m->n_wanted) {
    take_last(m, thread);
    barrier(m, thread);
    const word *x = prepare_rows(m, thread, m->last_block, m->n_wanted, m->ln_f, m->wte);
    linear(m, thread, x, m->n_wanted, m->wte, STORE, m->logits);
  }
  release_amx();
  barrier(m, thread);  // after this the caller may change m
}
