// What the kernels of every instruction set share: a step's state, and the table of their functions.
#pragma once

#include <atomic>

#include "program/api.h"
#include "sampling/sampling_api.h"

namespace sb {

constexpr int kPanel = 32;      // columns of a packed weight's panel
constexpr int kRowTile = 12;    // rows of a product at once in vector registers, at most
constexpr int kRowsAtOnce = 192;  // of a product, at most: their sums are held in scratch
constexpr int kWidened = 128;  // steps along the sum of a panel that is widened: they stay in L1
constexpr int64_t kProductScratch = 4 * (kRowsAtOnce + kWidened) * kPanel;  // bytes
constexpr int kKeyChunk = 256;  // keys between two corrections of a running softmax

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Queries of one sequence that attend together.
struct AttendTask {
  int32_t seq;
  int32_t first;  // token of the batch
  int32_t count;
};

// Rows of one adapter that are multiplied together, wherever they lie in the batch.
constexpr int kAdapterRows = 8;
struct AdapterRows {
  int32_t adapter;
  int32_t count;
  int32_t rows[kAdapterRows];
};

// A row's best logit in one tile of the head.
struct Best {
  float value;
  int32_t token;
  bool is_finite;
};

// Where the rows of experts lie.
struct Routed {
  const int32_t* tokens;  // [routed rows]
  const int32_t* rows;    // [num_tokens, num_chosen]: routed rows, in the order in which experts were chosen
  const float* shares;    // [num_tokens, num_shares]: likewise, and perhaps that of an expert of all tokens
  int32_t num_chosen, num_shares;
};

struct View {
  void* data;
  int64_t stride;  // elements; bytes of a row of codes
};

// One op of one step, ready to be computed tile by tile.
struct Phase {
  const SbOp* op;
  const SbShape* shape;  // with the op's own heads
  const SbBatch* batch;
  View src, dst, gate;
  int32_t src_code_bytes;  // of each code; 0 where src is no codes
  int32_t dst_code_bytes;
  int64_t rows;
  int64_t depth;    // of a product's sum: padded elements, or groups of codes
  int64_t panels;   // of a product
  int64_t panel_bytes;  // of a product's weight
  int32_t tiles;
  int32_t panel_tiles;      // of a product: as many tiles in a row are of the same rows
  int32_t panels_per_tile;  // of a product
  int32_t rows_per_tile;
  char* pool;
  int64_t block_bytes;
  int64_t place;  // bytes of a block before the op's K and V
  const AttendTask* tasks;
  int32_t heads_of_tile;  // of attention: query heads of a task, which share one of K and V
  const SbAdapter* adapters;      // the op's of the first adapter; or null where it adds nothing
  int32_t adapter_stride;         // to that of the next one
  const AdapterRows* adapter_rows;  // [num_adapter_rows]
  int32_t num_adapter_rows;
  View shrunk;
  Best* best;  // [tiles, rows]
  const Phase* rotation;  // of attention that rotates what it reads first; or null
  std::atomic<uint32_t>* written;  // [tiles]: the last step whose results are written; or null
  uint32_t step;
  uint32_t exchange;         // of a sum over ranks: its number
  int64_t share_floats;      // from src of one rank to that of the next
  int32_t num_shares;        // of a sum, or of a norm by sums: ranks
  Routed routed;      // of SB_GATHER and SB_MIX
  int32_t parts;      // of an op with states: tiles that divide the columns of a sequence, or of its head
  const float* zeros;  // likewise: a unit of zeros
  int32_t most_tiles;  // of a product of routed rows, whose number of tiles SB_ROUTE finds
};

// A tile that a thread computes. If phase.written is set, other threads may compute the same tile, and
// the first one that has results writes them.
struct Claim {
  int32_t tile;
  const char* ahead;  // the weight that the thread will most likely read after this tile, or null
  char* scratch;      // the thread's own
  mutable bool is_decided = false, is_first = true;

  bool may_write(const Phase& phase) const {
    if (!is_decided && phase.written) is_first = phase.written[tile].exchange(phase.step) != phase.step;
    is_decided = true;
    return is_first;
  }
};

using TileFunction = void (*)(const Phase& phase, const Claim& claim);

// Draws one row; `scratch` is the thread's own, three times the padded vocabulary, and zero at first.
using DrawFunction = void (*)(const SbDraws& draws, int64_t row, char* scratch);

struct KernelTable {
  TileFunction tile[2][SB_NUM_KINDS];  // [element][op kind]; those that use the cache have tables of their own
  TileFunction rotate[2][SB_NUM_ELEMENTS];  // [element][element of K and V]
  TileFunction attend[2][SB_NUM_ELEMENTS];
  TileFunction rotate_latents[2][2];  // likewise
  TileFunction attend_to_latents[2][2];
  DrawFunction draw;
  void (*rest)();  // called on each thread when it has done its part of a step
};

// Bytes of scratch that a thread needs, for attention or for a product that widens `pairs_bytes` of a panel.
constexpr int64_t scratch_bytes(int64_t task_rows, int64_t head_size, int64_t pairs_bytes) {
  const int64_t rows = round_up(task_rows, 16);
  const int64_t scales = 2 * 4 * kKeyChunk;  // of the keys in a chunk
  const int64_t attention =
      4 * rows * (2 * (kKeyChunk + head_size) + 32) + 32 * head_size + scales;
  return kProductScratch + (attention > pairs_bytes ? attention : pairs_bytes);
}

}  // namespace sb
