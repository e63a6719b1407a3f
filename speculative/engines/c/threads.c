// The threads of a pass: how Python's threads wait for a pass, share it, and meet at its barriers.

static void gpt2(GPT2 *m, int64_t thread);  // a thread's share of the network: engine.c

// A thread that waits spins for SPINS turns, then it yields its core in each turn. After YIELDS turns without a pass it
// returns to Python to sleep.
enum { MOST_THREADS = 256, SPINS = 50, YIELDS = 4000 };
enum {
  ASLEEP,  // in Python, which has to wake it
  LOOKING,  // in C, where it looks for a pass in each turn
  RESERVED,  // as LOOKING, for the pass that is about to begin: it does not fall asleep
  STARTED,  // the pass has begun: it should compute its share
};
static struct { _Alignas(64) _Atomic int state; } threads[MOST_THREADS];  // 64 bytes are a cache line
static _Alignas(64) GPT2 *current_pass;
static _Alignas(64) _Atomic int64_t n_arrived;  // threads at the next barrier
static _Alignas(64) _Atomic int64_t n_barriers;  // barriers that all threads have passed

static void take_turn(int64_t turns) {  // of a thread that waits
  if (turns > SPINS) sched_yield();
#if defined(__x86_64__)
  else _mm_pause();
#elif defined(__aarch64__)
  else __asm__ volatile("yield");
#endif
}

// Waits for the other threads of the pass: after it, each may read what the others have written before it.
static void barrier(GPT2 *m, int64_t thread) {
  int64_t n_threads = m->n_threads;  // once: after the last barrier of a pass the caller may change m
  if (n_threads == 1) return;
  int64_t n_before = atomic_load_explicit(&n_barriers, memory_order_acquire), since = 0;
  if (atomic_fetch_add_explicit(&n_arrived, 1, memory_order_acq_rel) == n_threads - 1) {  // the last one
    atomic_store_explicit(&n_arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&n_barriers, n_before + 1, memory_order_release);
    return;
  }
  for (int64_t turns = 0; atomic_load_explicit(&n_barriers, memory_order_acquire) == n_before; take_turn(++turns))
    if (turns == SPINS && thread == 0) since = nanoseconds();
  if (since) m->waited_ns += nanoseconds() - since;
}

// ---- The functions that Python calls --------------------------------------------------------------------------------

#define RESULTS(F) F(DONE, done) F(OTHERS_ASLEEP, others_asleep) F(NO_SUCH_TOKEN, no_such_token) F(NO_ROOM, no_room)
enum { RESULTS(NUMBER) };  // of a pass
const char *result_names(void) { return RESULTS(NAME); }

static int check(const GPT2 *m) {  // refuses a pass that would read or write outside the arrays
  int64_t n_rows = 0, n_wanted = 0;
  for (const Text *t = m->texts; t < m->texts + m->n_texts; t++) {
    if (t->n_past + t->n_rows > m->n_ctx || t->n_last > t->n_rows) return NO_ROOM;
    for (int64_t row = 0; row < t->n_rows; row++)
      if (t->tokens[row] < 0 || t->tokens[row] >= m->n_vocab) return NO_SUCH_TOKEN;
    n_rows += t->n_rows;
    n_wanted += t->n_last;
  }
  if (n_rows != m->n_rows || n_rows > m->most_rows || m->n_wanted > m->most_rows) return NO_ROOM;
  if (m->n_texts && n_wanted != m->n_wanted) return NO_ROOM;
  return DONE;
}

static int reserve(int64_t thread) {  // waits a little for a thread that sleeps. Returns 0 if it does not come
  int state = LOOKING;
  for (int64_t turns = 0; turns < YIELDS && atomic_load(&threads[thread].state) == ASLEEP; take_turn(++turns)) continue;
  return atomic_compare_exchange_strong(&threads[thread].state, &state, RESERVED);
}

// Computes a pass in this thread, number 0, and in the others. Returns DONE, or the reason why nothing was computed.
// others_woken: 0 to refuse if others are asleep, so that the caller wakes them; then 1, to wait a little for them, and
// go on without those that do not come.
int64_t run_pass(GPT2 *m, int64_t others_woken) {
  int64_t start = nanoseconds(), n = 1, refusal = check(m);
  if (refusal) return refusal;
  for (int64_t thread = 1; thread < m->n_threads && !others_woken; thread++)
    if (atomic_load(&threads[thread].state) == ASLEEP) return OTHERS_ASLEEP;
  current_pass = m;
  while (n < m->n_threads && reserve(n)) n++;
  m->n_threads = n;
  m->waited_ns = 0;
  for (int64_t thread = 1; thread < n; thread++) atomic_store(&threads[thread].state, STARTED);
  gpt2(m, 0);
  m->call_ns = nanoseconds() - start;
  return DONE;
}

// Computes a thread's share of each pass, until there is none for a while.
void join_passes(int64_t thread) {
  int asleep = ASLEEP, looking = LOOKING;
  if (!atomic_compare_exchange_strong(&threads[thread].state, &asleep, LOOKING)) return;  // another has this number
  for (int64_t turns = 0;; take_turn(++turns), looking = LOOKING) {
    if (atomic_load(&threads[thread].state) == STARTED) {
      atomic_store(&threads[thread].state, LOOKING);
      gpt2(current_pass, thread);
      turns = 0;
    } else if (turns > YIELDS && atomic_compare_exchange_strong(&threads[thread].state, &looking, ASLEEP)) return;
  }
}

void all_asleep(void) {  // in a forked child, which has no other threads; between two passes
  for (int thread = 0; thread < MOST_THREADS; thread++) atomic_store(&threads[thread].state, ASLEEP);
}
