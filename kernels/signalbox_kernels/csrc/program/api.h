// The C ABI of the native CPU path: plain structs of numbers and pointers that Python passes.
//
// A program is a list of ops over named buffers; a batch is one step's arrays. The caller owns
// every pointer and keeps it alive while the program lives (weights, tables) or the call runs.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum SbElement : int32_t { SB_F32 = 0, SB_BF16 = 1 };

// Format of a packed weight: elements, or codes in groups of 32 along the sum; see formats.h.
enum SbFormat : int32_t {
  SB_PLAIN = 0,
  SB_BITS4 = 1,
  SB_BITS4_MINIMUM = 2,
  SB_BITS6 = 3,  // a scale for each half of a group
  SB_BITS6_MINIMUM = 4,
  SB_BITS8 = 5,
};

// Format of a buffer's rows.
enum SbRow : int32_t { SB_ELEMENTS = 0, SB_FLOATS = 1, SB_CODES = 2 };

enum SbOpKind : int32_t {
  SB_EMBED = 0,   // token ids -> dst (float32); mode 1 reads a packed matrix
  SB_NORM = 1,    // RMSNorm of src (float32) -> dst (elements, codes); mode 1: of logit rows only
  SB_LINEAR = 2,  // src (elements, codes) times a packed weight; mode is an SbEpilogue
  SB_ROTATE = 3,  // src (Q, K, V in float32): rotated Q -> dst (elements), K and V -> the cache
  SB_ATTEND = 4,  // src (rotated Q) against the cache -> dst (elements)
  SB_HEAD = 5,    // src (logit rows) times a packed weight: argmax, and logits where asked
  SB_CODE = 6,    // src (elements) -> dst (codes)
};
#define SB_NUM_KINDS 7

enum SbEpilogue : int32_t {
  SB_STORE = 0,   // dst (float32) = product + bias
  SB_ADD = 1,     // dst (float32) += product + bias
  SB_SWIGLU = 2,  // dst (elements) = silu(gate + bias) * (up + bias); weight packed interleaved
};

struct SbOp {
  int32_t kind;
  int32_t mode;
  int32_t src;  // buffer
  int32_t dst;  // buffer
  int32_t layer;
  int32_t window;  // positions that a query sees; 0 is all
  int32_t n;       // output columns of a product, before padding
  float eps;
  const void* weight;   // packed, or [rows, width] for SB_EMBED; float32 for SB_NORM
  const float* bias;    // padded as the weight's columns, or null
  const float* norm_q;  // [head_size] or null
  const float* norm_k;
  int32_t format;  // of the weight, an SbFormat; src of a product is codes unless it is SB_PLAIN
  int32_t column;  // of dst where SB_STORE begins, a multiple of 32
};

struct SbBuffer {
  int32_t width;  // elements of a row; rows are padded with zeros to a multiple of 32
  int32_t row;    // an SbRow
};

struct SbShape {
  int32_t element;
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_size;   // a multiple of 16
  int32_t block_size;  // a multiple of 16 that divides 256, or one of 256
  int32_t hidden_size;
  int32_t vocab_size;
  float scale;
  const float* rotary;  // [positions, 2, head_size / 2]: cosines, then sines
};

struct SbAttention {
  int32_t num_seqs;      // each of one token at least
  int32_t table_stride;  // of block_tables
  const int64_t* slots;  // negative is padding
  const int64_t* query_start;
  const int64_t* context_lens;
  const int32_t* block_tables;
};

struct SbBatch {
  int32_t num_tokens;
  int32_t num_rows;  // of the head
  const int64_t* token_ids;
  const int64_t* positions;
  SbAttention attention;
  const int64_t* row_tokens;      // [num_rows] index of a token
  const int32_t* logits_of_row;   // [num_rows] row of `logits`, or -1
  const int32_t* suppressed_end;  // [num_rows] end of each row's run in `suppressed`
  const int32_t* suppressed;      // token ids that argmax passes over
  int32_t* argmax;                // [num_rows], written
  uint8_t* is_finite;             // [num_rows], written
  float* logits;                  // [*, vocab_size], written
};

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

// Bytes of a packed [n, k] matrix; interleaved: n counts gate and up together.
size_t sb_packed_bytes(int32_t element, int64_t n, int64_t k, int32_t interleaved);

// Packs a row-major [n, k] matrix into `packed` (zeroed by the caller).
void sb_pack(int32_t element, const void* weight, int64_t n, int64_t k, int32_t interleaved,
             void* packed);

// Bytes of a packed [n, k] matrix of a format.
size_t sb_quantised_bytes(int32_t format, int64_t n, int64_t k, int32_t interleaved);

// The format that blocks of a type of GGUF's are packed in, or -1 if there is none.
int32_t sb_format_of(int32_t block_type);

// Packs a matrix whose [n] rows are blocks of a type of GGUF's, `row_bytes` apart.
void sb_pack_blocks(int32_t block_type, const void* blocks, int64_t row_bytes, int64_t n, int64_t k,
                    int32_t interleaved, void* packed);

// Makes `count` blocks of 32 values each: GGUF's Q8_0 or Q4_1. Returns 0, or 1 for another type.
int32_t sb_quantise(int32_t block_type, const float* values, int64_t count, void* blocks);

// Returns null if the instruction set's kernels are not loaded or a number is out of range.
void* sb_program_new(const SbShape* shape, const SbOp* ops, int32_t num_ops,
                     const SbBuffer* buffers, int32_t num_buffers, int32_t num_threads,
                     int32_t isa);
void sb_program_free(void* program);

// The pool of KV blocks to work on.
void sb_program_bind(void* program, void* pool, int64_t block_bytes);

// Runs one step. Returns 0, or 1 without memory for the step's activations.
int32_t sb_program_run(void* program, const SbBatch* batch);

// From the next step on, adds the nanoseconds that each thread spends on each kind of op to
// ns [num_threads, SB_NUM_KINDS]; null ends that.
void sb_program_profile(void* program, int64_t* ns);

// A buffer's memory, for tests; rows are made for `num_tokens` first. Null without memory.
void* sb_program_buffer(void* program, int32_t buffer, int32_t num_tokens);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
}
