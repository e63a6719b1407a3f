// The arguments of a pass, which have the keys of gpt2.py's nested dicts, and the formats of weights.

// Every format: its number, its name in Python, the inputs and the bytes of one step of a channel, the bytes of a
// channel's own scale, the words of a row's block. Each name has four functions: prepare_, times_, weight_ and pack_.
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
  number n_rows, n_past, n_last;  // n_past tokens of it are in its cache; the logits of the last n_last rows are wanted
  const int64_t *tokens;  // [n_rows]
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
  number n_threads, first_layer, end_layer, n_rows, n_wanted, n_texts;  // n_wanted: rows whose logits are
  const Text *texts;  // [n_texts]
  float *last_block;  // [n_wanted, n_embd], its output, which is given if there is no text
  float *logits;  // [n_wanted, n_vocab]
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
