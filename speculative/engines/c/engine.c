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
// Shapes are in comments, as in gpt2.py. Read it from the bottom up: forward is the whole network. Its products are in
// products.c, what it is given in arguments.h, and the CPU's instructions in cpu.h.

// ---- The functions of gpt2.py ---------------------------------------------------------------------------------------

INLINE vfloat exp_(vfloat x) {  // for x <= 0: 2**n e**r, where r is small; 0 below -87
  // Adding 1.5 * 2**23 rounds to a whole number, which is then in the low bits. log(2) is split into a short part and
  // the rest, so that n log(2) loses no digits.
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
enum {
  ASLEEP,  // in Python, which has to wake it
  AWAKE,  // in C, where it looks for work in each turn
  CALLED,  // as AWAKE, but promised to the pass that is about to begin: it no longer falls asleep
  WORK,  // the pass may begin
};
static struct { _Alignas(64) _Atomic int state; } threads[MOST_THREADS];
static _Alignas(64) _Atomic int64_t arrived;  // threads at the barrier
static _Alignas(64) _Atomic int64_t met;  // barriers passed
static _Alignas(64) GPT2 *work;

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

static int64_t position_of(const Text *t, int64_t row) {  // its place in the text; in a tree, on its path
  if (!t->sees) return t->n_past + row;
  const uint8_t *sees = t->sees + row * t->sees_width;
  uint32_t n = 0;  // of slots that it attends to, itself included
  for (int64_t slot = 0; slot < t->n_past + t->n_rows; slot++) n += sees[slot];
  return (int64_t)n - 1;
}

static void embed(const GPT2 *m, int64_t thread) {  // x = wte[tokens] + wpe[positions]; a thread has some columns
  const Linear *w = m->wte;
  uint32_t from = thread * m->n_embd / m->n_threads, to = (thread + 1) * m->n_embd / m->n_threads;
  float *x = m->x;
  for (const Text *t = m->texts; t < m->texts + m->n_texts; t++)
    for (int64_t row = 0; row < t->n_rows; row++, x += m->n_embd) {
      int64_t tile = t->tokens[row] / LANES, lane = t->tokens[row] % LANES;
      const char *at = w->tiles + tile * tile_bytes(w->format, w->n_in);
      const float *scales = scales_of(w, tile), *position = m->wpe + position_of(t, row) * m->n_embd;
      look_up[w->format](at, scales ? scales[lane] : 1, lane, from, to, x);
      for (uint32_t k = from; k < to; k++) x[k] += position[k];
    }
}

static void take_wanted(const GPT2 *m, int64_t thread) {  // last_block = the wanted rows of x; a thread has some rows
  int64_t n = m->n_embd, wanted = 0;
  const float *x = m->x;
  for (const Text *t = m->texts; t < m->texts + m->n_texts; t++) {
    for (int64_t row = t->n_rows - t->n_last; row < t->n_rows; row++, wanted++)
      if (wanted % m->n_threads == thread) memcpy(m->last_block + wanted * n, x + row * n, 4 * n);
    x += t->n_rows * n;
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
  for (int64_t head = thread * m->n_head / m->n_threads; head < (thread + 1) * m->n_head / m->n_threads; head++) {
    const float *qkv = m->qkv;
    float *a = m->a;
    for (const Text *t = m->texts; t < m->texts + m->n_texts; t++) {  // -> [n_rows, n_embd]
      attention(m, *t, qkv, m->scratch[thread], layer, head, a);
      qkv += t->n_rows * 3 * m->n_embd;
      a += t->n_rows * m->n_embd;
    }
  }
  meet(m, thread);
  linear(m, thread, m->a, m->n_rows, 0, &attn->c_proj, ADD, m->x);
}

static void ffn(GPT2 *m, int64_t thread, const Mlp *mlp, const Norm *ln) {  // x += ...
  linear(m, thread, m->x, m->n_rows, ln, &mlp->c_fc, m->activation, m->hidden);  // -> [n_rows, n_inner]
  meet(m, thread);
  linear(m, thread, m->hidden, m->n_rows, 0, &mlp->c_proj, ADD, m->x);
}

static void forward(GPT2 *m, int64_t thread) {  // [n_rows] -> logits [n_wanted, n_vocab]
  embed(m, thread);
  meet(m, thread);
  for (int64_t layer = m->first_layer; layer < m->end_layer; layer++) {
    const Block *block = &m->blocks[layer];
    mha(m, thread, layer, &block->attn, &block->ln_1);
    meet(m, thread);
    ffn(m, thread, &block->mlp, &block->ln_2);
    meet(m, thread);
  }
  if (m->n_wanted) {
    take_wanted(m, thread);
    meet(m, thread);
    linear(m, thread, m->last_block, m->n_wanted, m->ln_f, m->wte, STORE, m->logits);
  }
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
  int64_t rows = 0, wanted = 0;
  for (const Text *t = m->texts; t < m->texts + m->n_texts; t++) {
    if (t->n_past + t->n_rows > m->n_ctx || t->n_last > t->n_rows) return NO_ROOM;
    for (int64_t row = 0; row < t->n_rows; row++)
      if (t->tokens[row] < 0 || t->tokens[row] >= m->n_vocab) return NO_SUCH_TOKEN;
    rows += t->n_rows;
    wanted += t->n_last;
  }
  if (rows != m->n_rows || rows > m->most_rows || m->n_wanted > m->most_rows) return NO_ROOM;
  if (m->n_texts && wanted != m->n_wanted) return NO_ROOM;
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
