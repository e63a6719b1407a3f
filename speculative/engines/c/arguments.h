// The arguments of a pass, under the keys of gpt2.py's nested dicts, and the formats of weights.

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

// Python fills these structs by the names in their declarations, which it asks for: library.py.
typedef intptr_t number;  // as large as an address
#define STRUCT(name, ...) \
  typedef struct { __VA_ARGS__ } name; \
  const char *layout_of_##name(void) { return #__VA_ARGS__; } \
  int64_t size_of_##name(void) { return sizeof(name); }
STRUCT(Linear,
  const float *b;  // [n_out], or 0 if it has no bias
  number n_in, n_out;
  number format;  // the number of its weights' format
  const char *tiles;  // [n_tiles, tile_bytes], or a matrix [n_in, n_out] of floats that is used where it lies in a file
  number row_bytes;  // bytes from an input of such a matrix to the next; 0 for tiles
)
STRUCT(Norm, const float *b, *g;)  // [n_embd] each
STRUCT(Attn, Linear c_attn, c_proj;)
STRUCT(Mlp, Linear c_fc, c_proj;)
STRUCT(Block, Attn attn; Norm ln_1, ln_2; Mlp mlp;)
STRUCT(Scratch,  // memory of a thread
  word *prepared;  // [most_rows, the widest input in words]: rows as the products read them
  float *row;  // [the widest input]: a row on its way
  float *sums;  // [SUMS]: those of a product
  float *scores;  // [ROWS, n_ctx up to whole tiles]: those of attention
)
STRUCT(Text,  // rows of a text, after those of the texts before it in the same pass
  number n_rows;
  number n_past;  // tokens of the text before them, whose keys and values its cache has
  number n_last;  // rows, from the last one up, whose logits are wanted
  const int64_t *tokens;  // [n_rows]
  float *keys;  // [n_layer, n_head, n_ctx / LANES, d_head, LANES], the cache: see attention
  float *values;  // [n_layer, n_head, d_head / LANES, n_ctx, LANES]
  const uint8_t *sees;  // [n_rows, sees_width], of a tree: 1 for the slots of the cache that a row attends to; else 0
  number sees_width;
)
STRUCT(GPT2,
  // Of the model:
  number n_head, n_embd, n_inner, n_ctx, n_vocab;
  number activation;  // its number
  const Block *blocks;  // [n_layer]
  const Linear *wte;  // [n_embd, n_vocab]: as the output matrix
  const float *wpe;  // [n_ctx, n_embd]
  const Norm *ln_f;
  const number *prefetch_bytes;  // [4], how far ahead a loop asks for memory, by the number of rows: see kind_of_rows
  // Memory for the activations of up to most_rows rows:
  number most_rows;
  float *x;  // [most_rows, n_embd], the residual stream
  float *qkv;  // [most_rows, 3*n_embd], queries, keys and values
  float *a;  // [most_rows, n_embd], attention's output
  float *hidden;  // [most_rows, n_inner], between the two layers of ffn
  const Scratch *scratch;  // [n_threads]
  // Of this pass:
  const Text *texts;  // [n_texts]
  number n_texts;
  number n_rows;  // of all texts
  number n_wanted;  // rows whose logits are wanted
  number first_layer, end_layer;  // blocks from the first up to the end
  number n_threads;  // at most; the pass sets those that take part
  float *last_block;  // [n_wanted, n_embd], the last block's output; it is given if there is no text
  float *logits;  // [n_wanted, n_vocab]
  number waited_ns;  // nanoseconds that the first thread waited for others
  number call_ns;  // nanoseconds of the pass
)

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t part_bytes(int format, int64_t n_in) {  // of a tile's weights
  return up(n_in, formats[format].inputs) / formats[format].inputs * formats[format].bytes * LANES;
}
int64_t tile_bytes(int64_t format, int64_t n_in) {  // the channels' scales follow the weights
  return part_bytes(format, n_in) + formats[format].scale_bytes * LANES;
}
