// The C ABI of the native CPU path: plain structs of numbers and pointers that Python passes.
//
// A program is a list of ops over named buffers; a batch is one step's arrays. The caller owns
// every pointer and keeps it alive while the program lives (weights, tables) or the call runs.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Of activations and of products that are not of codes: in SB_F32 a weight may have any storage;
// SB_BF16 takes SB_STORED_BF16 and codes of floats, which it rounds to that, and an instruction set that
// multiplies it. K and V have an element of their own: attention multiplies bfloat16 where both are
// SB_BF16, and else computes in float32. Of them alone are whole numbers of 8 bits, with a scale for
// each token and head, and E4M3.
enum SbElement : int32_t { SB_F32 = 0, SB_BF16 = 1, SB_INT8 = 2, SB_E4M3 = 3 };
#define SB_NUM_ELEMENTS 4

// Type of a weight's values in memory, with ggml's numbers; see formats.h for how they are packed.
enum SbStorage : int32_t {
  SB_STORED_F32 = 0,
  SB_STORED_F16 = 1,
  SB_STORED_Q4_0 = 2,
  SB_STORED_Q4_1 = 3,
  SB_STORED_Q5_0 = 6,
  SB_STORED_Q5_1 = 7,
  SB_STORED_Q8_0 = 8,
  SB_STORED_Q2_K = 10,
  SB_STORED_Q3_K = 11,
  SB_STORED_Q4_K = 12,
  SB_STORED_Q5_K = 13,
  SB_STORED_Q6_K = 14,
  SB_STORED_IQ4_NL = 20,
  SB_STORED_IQ4_XS = 23,
  SB_STORED_BF16 = 30,
  // Our own: E2M1 under E4M3 scales of 16 columns and a float; and places in a book of numbers that lies in the
  // weight, a type for each of four books.
  SB_STORED_NVFP4 = 0x80,
  SB_STORED_CODEBOOK = 0x84,
  SB_STORED_LAST_CODEBOOK = 0x87,
  // Whole numbers in groups: this, plus one of each of the parts below.
  SB_STORED_INTEGERS = 0x100,
  // Codes of floats, which are multiplied as floats; those of MXFP4 as whole numbers, too.
  SB_STORED_E4M3 = 0x200,
  SB_STORED_NF4 = 0x201,
  SB_STORED_FP4 = 0x202,
  SB_STORED_MXFP4 = 0x203,
  SB_STORED_INT8 = 0x204,
};

// Parts of a storage of whole numbers: bits of a code, type of the scales, columns of a group.
enum SbIntegers : int32_t {
  SB_GROUP_32 = 0,
  SB_GROUP_64 = 1,
  SB_GROUP_128 = 2,
  SB_GROUP_MASK = 3,
  SB_SCALES_BF16 = 4,  // halves without it
  SB_CODES_8 = 8,      // 4 bits without it
};

// Format of a buffer's rows. Codes have 8 bits, wide ones 16. SB_SHARED is float32 in the memory of
// the program's group: this rank's slot of the next exchange, which the next SB_SUM joins.
enum SbRow : int32_t { SB_ELEMENTS = 0, SB_FLOATS = 1, SB_CODES = 2, SB_SHARED = 3, SB_WIDE_CODES = 4 };

enum SbOpKind : int32_t {
  SB_EMBED = 0,   // an SbIndex of tokens -> dst (float32): scaled rows of a packed matrix, zeros of those it
                  // lacks; with SB_ADDED in the mode they are added to dst
  SB_NORM = 1,    // RMSNorm, or LayerNorm, of src (float32) -> dst (elements, codes; or float32); mode has SbNorms
  SB_LINEAR = 2,  // src (elements, codes) times a packed weight; mode is an SbEpilogue
  SB_ROTATE = 3,  // src (Q, K, V in float32; of latents Q, K): rotated Q -> dst (elements), the rest -> the cache; mode
                  // is SbPairs
  SB_ATTEND = 4,  // src (rotated Q) against the cache -> dst (elements); mode 1: also against later tokens
  SB_HEAD = 5,    // src (logit rows) times a packed weight: argmax, and logits where asked
  SB_CODE = 6,    // src (elements; float32 in mode 1) -> dst (codes, elements), perhaps in another order of columns;
                  // in mode 2 elements, each times the sigmoid of a column of `gate` (float32), from `column` on
  SB_SHRINK = 7,  // src (elements) times A of each row's adapter -> dst (elements)
  SB_SUM = 8,     // src (shared) of all ranks, summed in their order -> dst (float32); mode is SB_STORE or SB_ADD
  SB_ROUTE = 9,   // src (float32 scores) chooses the experts of each token, for the ops up to the next SB_ROUTE
  SB_GATHER = 10,  // rows of src -> dst (routed rows, in the same format)
  SB_MIX = 11,    // src (routed rows in float32): the sum of a token's rows times their shares, in the order
                  // in which they were chosen -> dst (float32); mode has SbMixes
  SB_CONVOLVE = 12,  // some columns of src (float32), each a channel that an SbConvolution sums along a sequence
                     // -> dst (float32)
  SB_SCAN = 13,      // Q, K, V in src (float32) and gates in `gate` (float32) pass the states of an SbScan, token by
                     // token -> dst (float32)
  SB_GATED_NORM = 14,  // RMSNorm of src (float32, written) in groups of n columns, and silu of columns of `gate`
                       // (float32) from `column` on, which are multiplied -> dst (elements, codes); mode is an
                       // SbGatedNorm
  SB_KEEP = 15,  // rows of src (float32) whose runs leave no state, to memory of the op; in a batch that settles such rows,
                 // from there -> src
};
#define SB_NUM_KINDS 16

// The order of the norm and the product of SB_GATED_NORM. Where a group has as many columns on each rank, it is two
// ops, with SB_SUM between them.
enum SbGatedNorm : int32_t {
  SB_GATED_AFTER = 0,        // the norm, and the product
  SB_GATED_BEFORE = 1,       // the product, and its norm
  SB_GATED_SQUARES = 2,      // the product alone; dst (float32): the sum of the squares of each group, and zeros
  SB_NORMED_BY_SQUARES = 3,  // the norm alone, by such sums of all ranks in `gate`
};

enum SbEpilogue : int32_t {
  SB_STORE = 0,   // dst (float32) = product + bias
  SB_ADD = 1,     // dst (float32) += product + bias
  SB_GATED = 2,   // dst (elements) = f(gate + bias) * (up + bias); weight packed interleaved
  SB_GATE = 3,    // dst (elements) = f(gate) * (product + bias), of a gate in float32
  SB_ACTIVATE = 4,  // dst (elements) = f(product + bias)
  SB_MODULATE = 5,  // dst (elements) = f(product + bias) * the columns of gate (float32) from `column` on
};

// The function f of a product. SB_CLAMPED goes with SB_GATED and SB_GATE alone: the gate is at most `limit`; what
// f(gate) is multiplied by is at most `limit` in magnitude, and 1 is added to that. f(x) is x * sigmoid(scale * x).
enum SbActivation : int32_t {
  SB_SILU = 0, SB_GELU = 1, SB_GELU_TANH = 2, SB_RELU = 3, SB_CLAMPED = 4, SB_IDENTITY = 5,
  SB_RELU_SQUARED = 6,
};

// What SB_EMBED looks up of a token: its id, its position, or its type.
enum SbIndex : int32_t { SB_TOKEN_IDS = 0, SB_POSITIONS = 1, SB_TOKEN_TYPES = 2, SB_INDEX_MASK = 3, SB_ADDED = 4 };

// The elements of a head that SB_ROTATE turns together: i and i + n / 2, or 2 i and 2 i + 1.
enum SbPairs : int32_t { SB_HALVES = 0, SB_NEIGHBOURS = 1 };

// Bits of SB_NORM's mode.
enum SbNorms : int32_t {
  SB_OF_ROWS = 1,   // of logit rows only
  SB_CENTRED = 2,   // LayerNorm: less the mean, and plus the bias, if there is one
  SB_TO_FLOATS = 4,  // dst is float32, and may be src
  SB_TO_SUM = 8,     // beside SB_TO_FLOATS, of RMSNorm: the result is added to dst, and the sum times `scale`
  SB_UNNORMED = 16,  // no norm: the rows times the weight
};

// Bits of what SB_ROTATE does with K and V.
enum SbKeysAndValues : int32_t {
  SB_NO_KEYS = 1,         // Q alone is rotated, and the cache is left as it is
  SB_VALUES_OF_KEYS = 2,  // V is what K is before its norm
  SB_NORMED_VALUES = 4,   // V passes an RMSNorm without a weight
};

// Bits of SB_MIX's mode.
enum SbMixes : int32_t {
  SB_MIX_ADDED = 1,  // the sum is added to dst
  SB_MIX_COMMON = 2,  // it has the rows of `gate` (float32), too: those of an expert of all tokens
};

// What a score becomes: the shares of all experts sum to 1, or each is its own.
enum SbScores : int32_t { SB_SOFTMAX = 0, SB_SIGMOID = 1 };

// How SB_ROUTE chooses. The experts of a token are those of the largest shares plus bias, the lower number
// first among equals.
struct SbRouting {
  int32_t num_experts;
  int32_t num_chosen;    // for each token
  int32_t function;      // an SbScores
  int32_t renormalises;  // the shares of those that are chosen sum to 1
  int32_t num_groups;    // of neighbouring experts, which divide all; 1 is none
  int32_t num_chosen_groups;  // those with the largest sums; experts of other groups come last
  int32_t num_summed;  // largest shares of a group that make its sum; all, if it has fewer
  int32_t has_common;    // column num_experts of the scores is of an expert of all tokens: its share is the sigmoid
  float scale;           // factor of the shares of those that are chosen
  const float* bias;     // [num_experts] or null
  const float* scales;   // [num_experts] factors of their shares when they are chosen, or null
};
#define SB_MOST_EXPERTS 1024

// Where an op's part of a sequence's state lies. A state is a list of pages of the pool, which need not be
// neighbours. The part is units of one size, each within a page: one behind the other from `offset` of a page
// on, and from the beginning of each page behind it.
struct SbPlace {
  int32_t page;        // of the state's list
  int32_t offset;      // bytes, a multiple of 64
  int32_t page_bytes;  // that units may lie in, of each page
};
#define SB_UNIT_COLUMNS 16

// A sum along a sequence: of each channel its last `width` inputs, times their weights, plus a bias. The state
// is the inputs that a later token reads; a unit is those of 16 channels, [width - 1, 16] float32, the oldest
// first.
struct SbConvolution {
  int32_t num_channels;  // a multiple of 16
  int32_t width;         // 2 to 4
  int32_t column;        // of src, that has the first channel
  int32_t factor;        // of src: the first column of factors of the inputs, or -1
  int32_t gate;          // of src: the first column of factors of the results, or -1
  int32_t activation;    // of the sum: SB_SILU or SB_IDENTITY
  const float* weights;  // [width, num_channels], of the oldest input first
  const float* bias;     // [num_channels] or null
  SbPlace place;
};

// How a token changes the state S of a head, [key_size, value_size], to d S + k u, of which it then takes
// q S + skip * v. Its time step t is softplus(its gate + bias), within limits, and d is exp(rate * t).
enum SbRule : int32_t {
  SB_GATED_DELTA = 0,  // u = sigmoid(strength) * (v - k d S); q and k are divided by their lengths, and q by
                       // sqrt(key_size), too
  SB_SELECTIVE = 1,    // u = t v
};

// States of the heads of a layer, in float32. A unit is 16 columns of a head's state, [key_size, 16]; they lie in
// the order of heads and columns.
struct SbScan {
  int32_t rule;
  int32_t num_heads;
  int32_t num_key_heads;  // of q and k, each for as many heads
  int32_t heads_in_turn;  // 0: neighbours share one of q and k; 1: head i has number i % num_key_heads
  int32_t key_size;       // a multiple of 16, up to 256
  int32_t value_size;     // a multiple of 16
  int32_t query;  // of src: the first columns
  int32_t key;
  int32_t value;
  int32_t step;      // of `gate`: the first columns, one for each head
  int32_t strength;  // likewise, of SB_GATED_DELTA
  float least_step;
  float most_step;
  const float* rates;   // [num_heads], below 0
  const float* biases;  // [num_heads], of time steps
  const float* skips;   // [num_heads] or null
  SbPlace place;
};
#define SB_MOST_KEY_SIZE 256

// Codes of 8 bits that SB_NORM and SB_CODE round a row to. A dynamic scale takes the largest magnitude to
// 127.5 or 448; SB_ROUND_INT8_WITH_ZERO has a dynamic zero point, too. dst are the values of the codes, or of
// SB_ROUND_INT8 without a zero point the codes themselves.
enum SbRounding : int32_t {
  SB_ROUND_NONE = 0,  // elements as they are; codes by groups of 32
  SB_ROUND_INT8 = 1,
  SB_ROUND_INT8_WITH_ZERO = 2,
  SB_ROUND_E4M3 = 3,
};

struct SbOp {
  int32_t kind;
  int32_t mode;
  int32_t src;  // buffer
  int32_t dst;  // buffer
  int32_t layer;   // of SB_ROTATE and SB_ATTEND: where K and V lie in a block, counted in a shape's layers
  int32_t window;  // a query sees tokens less than so many positions away; 0 is all
  int32_t n;       // of a product: output columns before padding; of SB_EMBED: rows of the table; of SB_ROTATE: first
                   // elements of each head, an even number, which alone are turned. Of RMSNorm: columns from `column`
                   // on, taken from src to dst, if dst is float32 (perhaps src); else the width of src. 0 is the
                   // hidden size. Of SB_ATTEND with a weight: positions
  float eps;
  const void* weight;   // packed; float32 for SB_NORM and SB_GATED_NORM, as wide as src; an SbConvolution or an SbScan
                        // for their ops; for SB_CODE the columns in order, or null; for SB_ROTATE
                        // its own table, [positions, 2, n / 2], or null for the shape's; for SB_ROUTE an SbRouting;
                        // for SB_ATTEND what is added to scores without a cap, [heads, 2 * (n - 1) + panel], of keys
                        // from n - 1 places before a query on, or null. A product of routed rows has the weights, and
                        // biases, of all experts in a row
  const float* bias;    // padded as the weight's columns; for SB_ATTEND the sink of each head: a score beside
                        // those of its tokens; for SB_ROTATE the factor of Q at each position. Or null
  const float* norm_q;  // [head_size] or null
  const float* norm_k;
  // Of SB_ROTATE and SB_ATTEND whose heads are others than the shape's; 0 is those.
  int32_t num_heads;    // of SB_GATED_NORM: groups of columns
  int32_t num_kv_heads;
  int32_t head_size;
  int32_t keys_and_values;  // of SB_ROTATE: bits of SbKeysAndValues
  int32_t storage;  // of the weight, an SbStorage; a product of codes takes blocks
  int32_t column;   // of the gate of SB_CODE; of dst where SB_STORE, which writes whole panels so that padding may follow, or those begin
  int32_t gate;     // buffer that SB_GATE, SB_SCAN, SB_GATED_NORM or mode 2 of SB_CODE reads
  // Adapters. A site is one product; `adapter` is its number from 1, of SB_SHRINK and the SB_LINEAR that
  // follows it. Any other op that has it is for batches with adapters alone.
  int32_t adapter;
  int32_t shrunk;        // buffer that SB_SHRINK writes, and its SB_LINEAR reads
  const uint8_t* parts;  // of each 16 packed columns of an SB_LINEAR: the part that they belong to
  int32_t first_token;   // of SB_EMBED and SB_HEAD: the token, position or type of the weight's first row
  // Of SB_ROTATE and SB_ATTEND with K and V in SB_E4M3: a value is a code times the layer's scale.
  float k_scale;
  float v_scale;
  float cap;             // of SB_ATTEND and SB_HEAD: scores, or logits, become cap * tanh(x / cap); 0 leaves them
  float scale;           // of SB_EMBED: the factor of its rows; of SB_TO_SUM: that of the sum; of SB_CLAMPED: that
                         // within the sigmoid; of a rounding: a static one, or 0
  int32_t activation;    // of a product with a function: an SbActivation
  int32_t rounding;      // an SbRounding
  int32_t group;         // columns that share a dynamic scale, a multiple of 32; 0 is all. Of SB_NORM that norms n
                         // columns: runs of n, one behind the other, each of which is normed by itself
  float zero;            // the zero point that goes with a static scale
  float limit;           // of SB_CLAMPED
  // Of a product with a matrix for each of several heads, whose weights are in a row; 0 is one matrix. Each reads
  // src_step columns of src (elements), or all if that is 0, and writes dst from dst_step columns on behind those
  // of the head before; both are multiples of 32, and so is n.
  int32_t num_matrices;
  int32_t src_step;
  int32_t dst_step;
  int32_t cache_group;  // of SB_ROTATE and SB_ATTEND: the group of layers in whose blocks K and V lie
};

// Steps of the program's element: of bfloat16, two steps lie in pairs.
//
// What one adapter adds to the product of one site, or null pointers for nothing. Parts are matrices
// that share a product, such as gate and up: part p reads columns [p * rank, (p + 1) * rank) of x A.
struct SbAdapter {
  const void* a;     // for each 16 columns of x A: a step of 16 for each element of x
  const void* b;     // for each 16 packed columns of the product: `rank` steps of 16
  int32_t columns;   // rank times parts
  int32_t rank;      // of all parts, the largest, padded to even
};

struct SbBuffer {
  int32_t width;  // elements of a row; rows are padded with zeros to a multiple of 32
  int32_t row;    // an SbRow
  int32_t copies;  // of routed rows: experts of each token, whose rows lie sorted by expert; else 0
};

struct SbShape {
  int32_t element;
  int32_t kv_element;
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_size;   // a multiple of 16
  int32_t value_size;  // of latents, a multiple of 32: the cache has one vector a token, K, which ends with V; then
                       // there is one such head, in float32 or bfloat16. 0 is K and V of head_size each
  int32_t block_size;  // a multiple of 16 that divides 256, or one of 256
  int32_t hidden_size;
  int32_t vocab_size;
  float scale;
  const float* rotary;  // [positions, 2, n / 2]: cosines, then sines, of each SB_ROTATE without a table of its own
};

// Slots and tables are those of group 0, then of each other group of layers that keeps blocks of its own.
struct SbAttention {
  int32_t num_seqs;      // each of one token at least
  int32_t table_stride;  // of block_tables
  const int64_t* slots;  // [groups, num_tokens]; negative is padding
  const int64_t* query_start;
  const int64_t* context_lens;
  const int32_t* block_tables;  // [groups, num_seqs, table_stride]
};

// The states of a step's sequences. The rows of a sequence are cut to runs, each of which leaves a state behind: the
// first begins with the state that the sequence reads, and others with that which the one before them left. A state
// may be written where it was read; no sequence writes one that another of the step reads. The last run of a sequence
// may leave none: its rows are computed, and SB_KEEP keeps what the ops with states read of them, so that a later batch
// can leave the state behind some of them.
struct SbStates {
  int32_t num_seqs;      // each of one run at least
  int32_t num_pages;     // of each state
  const int32_t* first_runs;  // [num_seqs + 1]
  const int64_t* run_start;   // [runs + 1] rows; a run has one at least
  const int32_t* reads;       // [num_seqs, num_pages] pages; a state whose first is negative is zeros
  const int32_t* writes;      // [runs, num_pages]; a run whose first is negative leaves none
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
  const int32_t* adapters;        // [num_tokens] row of the program's table, or -1; null if all are -1
  const int32_t* token_types;     // [num_tokens]; null if all are 0
  SbStates states;                // of all rows, if an op has states
  // Of a batch that settles rows: [num_tokens], which of the rows that the last batch with tokens has kept, in its order.
  // SB_KEEP and ops with states alone are computed then. Else null.
  const int64_t* settled;
};

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

// Whether the kernels that are loaded for an instruction set have products of bfloat16.
int32_t sb_multiplies_bfloat16(int32_t isa);

// Bytes of a packed [n, k] matrix; interleaved: n counts gate and up together.
size_t sb_packed_bytes(int32_t storage, int64_t n, int64_t k, int32_t interleaved);

// Packs a matrix whose [n] rows of floats or blocks are `row_bytes` apart into `packed` (zeroed by the
// caller).
void sb_pack(int32_t storage, const void* rows, int64_t row_bytes, int64_t n, int64_t k,
             int32_t interleaved, void* packed);

// Makes `count` blocks of 32 values each: Q8_0 or Q4_1. Returns 0, or 1 for another storage.
int32_t sb_quantise(int32_t storage, const float* values, int64_t count, void* blocks);

// Returns null if the instruction set's kernels are not loaded or lack the element's products, a
// number is out of range, or a weight's storage does not suit its op.
void* sb_program_new(const SbShape* shape, const SbOp* ops, int32_t num_ops,
                     const SbBuffer* buffers, int32_t num_buffers, int32_t num_threads,
                     int32_t isa);
void sb_program_free(void* program);

// The pool of KV blocks to work on.
void sb_program_bind(void* program, void* pool, int64_t block_bytes);

// The table of adapters of all later steps, [num_adapters, num_sites].
void sb_program_adapters(void* program, const SbAdapter* table, int32_t num_adapters,
                         int32_t num_sites);

// Bytes of the memory through which ranks exchange rows, each slot being of `slot_bytes`.
int64_t sb_group_bytes(int32_t num_ranks, int64_t slot_bytes);

// One rank of several that map the same memory, which is zero at first and outlives the group.
void* sb_group_new(void* memory, int32_t rank, int32_t num_ranks, int64_t slot_bytes);
void sb_group_free(void* group);

// The number of exchanges that the rank has joined, modulo 2^32.
uint32_t sb_group_joined(void* group);

// The nanoseconds that the rank has waited for others; read it between steps.
int64_t sb_group_waited_ns(void* group);

// Makes all ranks that wait for each other stop, now and later; safe from any thread.
void sb_group_call_off(void* group);

// The ranks that a program's sums are over, and that share its head; rank 0 gets what the others compute
// of that. The group outlives the program.
void sb_program_join(void* program, void* group);

// Runs one step. Returns 0, 1 without memory for the step's activations, 2 if the program's ranks were
// called off, or 3 if the batch lacks states, or pages of them, or settles rows that were not kept.
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
