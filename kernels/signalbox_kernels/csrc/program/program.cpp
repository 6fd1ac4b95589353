#include "program/program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "matmul/formats.h"
#include "program/states.h"

namespace sb {

namespace {

constexpr int64_t kHalfPanel = kPanel / 2;   // columns of an adapter's tile
constexpr int32_t kTilesAThread = 24;       // of a product: enough to balance
constexpr int64_t kFetchedAhead = 1 << 18;  // bytes while a thread waits: they stay in L2
constexpr int64_t kRowsBytes = 1 << 20;     // of a product's left side: they stay in L2
constexpr int64_t kFewestRows = 96, kMostRows = 512;  // of a product's tile
constexpr int64_t kRowUnit = 32;            // what matrix registers compute at once
constexpr int64_t kSharedRows = 12;         // of a product whose tiles several threads may compute
constexpr int64_t kSharedBytes = 1 << 16;   // of such a tile's weight, at most: a few microseconds
constexpr int32_t kFewestHeads = 4;         // that read latents together
constexpr int32_t kTaskRows = 48;           // of attention: as many as share keys from L1
constexpr int64_t kStateTiles = 4;          // for each thread, where the columns of sequences are divided

constexpr int64_t kFloatBytes = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The better one of two logits of a row: the larger, or of two equals the lower token.
void take_better(Best& best, const Best& other) {
  best.is_finite = best.is_finite && other.is_finite;
  const bool is_better = other.value > best.value ||
                         (other.value == best.value && other.token < best.token);
  if (is_better && other.value > -INFINITY) {
    best.value = other.value;
    best.token = other.token;
  }
}

int64_t bytes_of_row(const Phase& phase, int32_t element) {
  if (phase.src_code_bytes) return phase.src.stride;
  return phase.src.stride * (element == SB_F32 ? 4 : 2);
}

// Returns the rows of a tile: balanced, and a multiple of the matrix registers' rows.
int32_t rows_of_tile(const Phase& phase, int32_t element) {
  const int64_t most =
      std::clamp(kRowsBytes / bytes_of_row(phase, element), kFewestRows, kMostRows);
  const int64_t tiles = ceil_div(phase.rows, most / kRowUnit * kRowUnit);
  return static_cast<int32_t>(round_up(ceil_div(phase.rows, tiles), kRowUnit));
}

bool is_product(const SbOp& op) { return op.kind == SB_LINEAR || op.kind == SB_HEAD; }

const char* weight_of_first(const Phase& phase, int32_t tile) {
  int64_t panel = tile % phase.panel_tiles * static_cast<int64_t>(phase.panels_per_tile);
  if (phase.op->num_matrices) panel += tile / (phase.tiles / phase.op->num_matrices) * phase.panels;
  return static_cast<const char*>(phase.op->weight) + panel * phase.panel_bytes;
}

// Returns the memory that tiles [first, end) read first; the next rows' tiles begin at the first
// panel again.
Stretch weight_of_share(const Phase& phase, int32_t first, int32_t end) {
  const int64_t panel = first % phase.panel_tiles * static_cast<int64_t>(phase.panels_per_tile);
  const int64_t wanted = (end - first) * static_cast<int64_t>(phase.panels_per_tile);
  const int64_t bytes = std::min(wanted, phase.panels - panel) * phase.panel_bytes;
  const char* weight = weight_of_first(phase, first);
  return {weight, weight + std::min(bytes, kFetchedAhead)};
}

// The shape that an op of attention computes by.
SbShape with_heads(SbShape shape, const SbOp& op) {
  if (!op.head_size) return shape;
  shape.num_heads = op.num_heads;
  shape.num_kv_heads = op.num_kv_heads;
  shape.head_size = op.head_size;
  return shape;
}

int64_t stride(const SbBuffer& buffer) {
  const int64_t padded = round_up(buffer.width, kPanel);
  const int32_t bytes = code_bytes(buffer.row);
  return bytes ? padded / kGroup * coded_group_bytes(bytes) : padded;
}

}  // namespace

Memory::~Memory() { std::free(data_); }

bool Memory::reserve(int64_t bytes) {
  if (bytes <= bytes_) return true;
  const auto size = static_cast<size_t>(round_up(bytes, 4096));
  void* data = std::aligned_alloc(4096, size);
  if (!data) return false;
  std::memset(data, 0, size);
  std::free(data_);
  data_ = static_cast<char*>(data);
  bytes_ = static_cast<int64_t>(size);
  return true;
}

Program::Program(const SbShape& shape, std::vector<SbOp> ops, std::vector<SbBuffer> buffers,
                 int32_t num_threads, const KernelTable& kernels)
    : shape_(shape),
      ops_(std::move(ops)),
      buffers_(std::move(buffers)),
      num_threads_(num_threads),
      kernels_(kernels),
      memory_(buffers_.size()),
      kept_(ops_.size()),
      scratch_(static_cast<size_t>(num_threads)),
      phases_(ops_.size()),
      tiles_(ops_.size()),
      after_(ops_.size() * static_cast<size_t>(num_threads)),
      routing_of_(ops_.size(), -1),
      pool_(num_threads, std::max<int32_t>(1, static_cast<int32_t>(ops_.size())), kernels.rest) {
  int32_t last = -1;
  for (size_t i = 0; i < ops_.size(); ++i) routing_of_[i] = last += ops_[i].kind == SB_ROUTE;
  routings_.reset(new Routing[static_cast<size_t>(last + 1)]);
  for (const SbOp& op : ops_) {
    const SbShape& own = shapes_.emplace_back(with_heads(shape_, op));
    most_group_ = std::max(most_group_, own.num_heads / own.num_kv_heads);
    most_head_ = std::max(most_head_, own.head_size);
    const StateUnits units = units_of(op);
    state_pages_ = std::max(state_pages_, units.end_page());
    if (units.bytes) state_page_bytes_ = std::max<int64_t>(state_page_bytes_, units.place->page_bytes);
  }
  task_rows_ = std::max(kTaskRows, most_group_);
}

void Program::bind(char* pool, int64_t block_bytes) {
  pool_memory_ = pool;
  block_bytes_ = block_bytes;
}

void Program::set_adapters(const SbAdapter* table, int32_t num_adapters, int32_t num_sites) {
  adapters_ = table;
  num_adapters_ = num_adapters;
  num_sites_ = num_sites;
  adapter_columns_.assign(static_cast<size_t>(num_sites), 0);
  for (int32_t i = 0; i < num_adapters * num_sites; ++i) {
    int32_t& most = adapter_columns_[static_cast<size_t>(i % num_sites)];
    most = std::max(most, table[i].columns);
  }
}

bool Program::reserve(int64_t num_rows) {
  constexpr int64_t more = 64;  // a product may read, and drop, some more
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].row == SB_SHARED) continue;
    const int64_t rows = round_up(num_rows * std::max(1, buffers_[i].copies), 64) + more;
    const int64_t size = element_bytes(static_cast<int32_t>(i));
    if (!memory_[i].reserve(rows * stride(buffers_[i]) * size)) return false;
  }
  if (state_pages_ && !zeros_.reserve(kMostUnitBytes)) return false;
  const int64_t dropped = state_pages_ ? kDroppedBytes : 0;
  for (Memory& scratch : scratch_)
    if (!scratch.reserve(scratch_bytes(task_rows_, most_head_, std::max(pairs_bytes(), dropped)))) return false;
  return true;
}

// Bytes of what a buffer's stride counts.
int64_t Program::element_bytes(int32_t buffer) const {
  const int32_t row = buffers_[static_cast<size_t>(buffer)].row;
  if (code_bytes(row)) return 1;
  return row == SB_ELEMENTS && shape_.element == SB_BF16 ? 2 : 4;
}

// Bytes of the largest panel that is widened to bfloat16 as a whole.
int64_t Program::pairs_bytes() const {
  int64_t most = 0;
  for (const SbOp& op : ops_)
    if (shape_.element == SB_BF16 && is_product(op) && is_float_codes(op.storage))
      most = std::max(most, Bfloat16::panel_bytes(stride(buffers_[static_cast<size_t>(op.src)])));
  return most;
}

// Whether a slot of the group holds the rows of a step, and at least one row of logits.
bool Program::fits_group(int64_t num_rows) const {
  for (const SbBuffer& buffer : buffers_)
    if (buffer.row == SB_SHARED &&
        (!group_ || num_rows * stride(buffer) * kFloatBytes > group_->slot_bytes()))
      return false;
  return !group_ || tokens_of_rank() * kFloatBytes <= group_->slot_bytes();
}

// Whether the states that the ops read and write are there, of all rows.
bool Program::has_states(const SbBatch& batch) const {
  const SbStates& states = batch.states;
  if (!state_pages_ || !batch.num_tokens) return true;
  for (int64_t i = 0; batch.settled && i < batch.num_tokens; ++i)
    if (batch.settled[i] < 0 || batch.settled[i] >= static_cast<int64_t>(kept_tokens_.size())) return false;
  return states.num_seqs && states.num_pages >= state_pages_ && block_bytes_ >= state_page_bytes_ &&
         states.run_start[states.first_runs[states.num_seqs]] == batch.num_tokens;
}

// Finds the rows that a step keeps, and makes room for them. Returns false if there is no memory.
bool Program::reserve_kept(const SbBatch& batch) {
  if (!state_pages_ || !batch.num_tokens || batch.settled) return true;
  const SbStates& states = batch.states;
  kept_tokens_.clear();
  for (int32_t run = 0; run < states.first_runs[states.num_seqs]; ++run) {
    if (states.writes[int64_t{run} * states.num_pages] >= 0) continue;
    for (int64_t row = states.run_start[run]; row < states.run_start[run + 1]; ++row) kept_tokens_.push_back(row);
  }
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].kind != SB_KEEP) continue;
    const int64_t row_bytes = stride(buffers_[static_cast<size_t>(ops_[i].src)]) * kFloatBytes;
    if (!kept_[i].reserve(static_cast<int64_t>(kept_tokens_.size()) * row_bytes)) return false;
  }
  return true;
}

// Copies the rows of a tile to where they are kept, or back.
void Program::keep(int32_t phase, int32_t tile) const {
  const Phase& p = phases_[static_cast<size_t>(phase)];
  const int64_t* settled = p.batch->settled;
  const int64_t row_bytes = p.src.stride * kFloatBytes, first = int64_t{tile} * p.rows_per_tile;
  for (int64_t row = first; row < std::min(first + p.rows_per_tile, p.rows); ++row) {
    const int64_t token = settled ? row : kept_tokens_[static_cast<size_t>(row)];
    char* own = static_cast<char*>(p.src.data) + token * row_bytes;
    char* kept = kept_[static_cast<size_t>(phase)].data() + (settled ? settled[row] : row) * row_bytes;
    std::memcpy(settled ? own : kept, settled ? kept : own, static_cast<size_t>(row_bytes));
  }
}

int32_t Program::run(const SbBatch& batch) {
  if (!has_states(batch)) return 3;
  if (!reserve(std::max(batch.num_tokens, batch.num_rows)) || !reserve_kept(batch) || !fits_group(batch.num_tokens))
    return 1;
  if (group_) exchange_ = group_->joined() + 1;
  plan_attention(batch);
  plan_adapters(batch);
  for (size_t i = 0; i < ops_.size(); ++i) {
    phases_[i] = plan(i, batch);
    tiles_[i] = phases_[i].tiles;
  }
  if (!share_tiles()) return 1;
  if (batch.num_tokens == batch.attention.num_seqs && !shape_.value_size) join_rotations();
  plan_ahead();
  pool_.run(*this, tiles_);
  return is_called_off_ || !reduce(batch) ? 2 : 0;
}

bool Program::tile(int32_t phase, int32_t tile, int32_t thread, Stretch& ahead) {
  using Clock = std::chrono::steady_clock;
  const Phase& p = phases_[static_cast<size_t>(phase)];
  const auto start = profile_ns_ ? Clock::now() : Clock::time_point();
  const Stretch next = after(phase, tile, thread);
  const Claim claim{tile, next.first, scratch_[static_cast<size_t>(thread)].data()};
  if (p.op->kind == SB_SUM && !group_->join(p.exchange, after_phase(phase, thread)))
    is_called_off_ = true;
  bool is_first = true;
  if (p.op->kind == SB_KEEP)
    keep(phase, tile);
  else if (p.op->kind == SB_ROUTE)
    route(phase, tile);
  else
    is_first = compute(phase, claim);
  if (profile_ns_) {
    const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
    profile_ns_[thread * SB_NUM_KINDS + p.op->kind] += spent.count();
  }
  if (next.first) ahead = {next.first + p.panel_bytes, next.end};
  return is_first;
}

// Computes a tile; returns whether it is the first to have results.
bool Program::compute(int32_t phase, const Claim& claim) const {
  const Phase& p = phases_[static_cast<size_t>(phase)];
  const TileFunction function = function_of(p.op->kind);
  if (p.op->num_matrices) return compute_head(p, claim);
  if (!has_experts(*p.op)) {
    function(p, claim);
    return claim.is_first;
  }
  // A product of one expert's rows alone.
  const ExpertRows& rows = routing_of(static_cast<size_t>(phase)).parts()[static_cast<size_t>(claim.tile / p.panel_tiles)];
  SbOp op = *p.op;
  Phase part = p;
  part.op = &op;
  part.rows = rows.count;
  op.weight = static_cast<const char*>(op.weight) + rows.expert * p.panels * p.panel_bytes;
  if (op.bias) op.bias += rows.expert * p.panels * kPanel;
  const auto skip = [&](View& view, int32_t buffer) {
    view.data = static_cast<char*>(view.data) + rows.first * view.stride * element_bytes(buffer);
  };
  skip(part.src, op.src);
  skip(part.dst, op.dst);
  if (op.mode == SB_GATE) skip(part.gate, op.gate);
  const Claim own{claim.tile % p.panel_tiles, claim.ahead, claim.scratch};
  if (part.written) part.written += claim.tile - own.tile;
  function(part, own);
  return own.is_first;
}

// Computes a tile of a product with one head's matrix.
bool Program::compute_head(const Phase& p, const Claim& claim) const {
  SbOp op = *p.op;
  Phase part = p;
  part.op = &op;
  part.tiles = p.tiles / op.num_matrices;
  const int32_t head = claim.tile / part.tiles;
  const auto skip = [&](View& view, int32_t columns, int32_t buffer) {
    view.data = static_cast<char*>(view.data) + head * columns * element_bytes(buffer);
  };
  skip(part.src, op.src_step, op.src);
  skip(part.dst, op.dst_step, op.dst);
  op.weight = static_cast<const char*>(op.weight) + head * p.panels * p.panel_bytes;
  const Claim own{claim.tile % part.tiles, claim.ahead, claim.scratch};
  if (part.written) part.written += claim.tile - own.tile;
  function_of(op.kind)(part, own);
  return own.is_first;
}

// Chooses experts for the tokens of a tile. The last one that does gives the products of experts their tiles,
// before any thread comes to them.
void Program::route(int32_t phase, int32_t tile) {
  const auto i = static_cast<size_t>(phase);
  const Phase& p = phases_[i];
  Routing& routing = routing_of(i);
  const int64_t first = static_cast<int64_t>(tile) * p.rows_per_tile;
  if (!routing.choose(first, std::min(first + p.rows_per_tile, p.rows), p.src)) return;
  const auto count = static_cast<int32_t>(routing.parts().size());
  for (size_t next = i + 1; next < ops_.size() && routing_of_[next] == routing_of_[i]; ++next) {
    if (!has_experts(ops_[next])) continue;
    phases_[next].tiles = count * phases_[next].panel_tiles;
    pool_.set_tiles(static_cast<int32_t>(next), phases_[next].tiles);
  }
}

Routing& Program::routing_of(size_t op) const { return routings_[static_cast<size_t>(routing_of_[op])]; }

int32_t Program::overdue(int32_t phase, int32_t thread) {
  const Phase& p = phases_[static_cast<size_t>(phase)];
  if (!p.written) return -1;
  const int32_t start = share_start(p.tiles, thread, num_threads_);
  for (int32_t i = 0; i < p.tiles; ++i) {
    const int32_t tile = (start + i) % p.tiles;
    if (p.written[tile].load() != p.step) return tile;
  }
  return -1;
}

TileFunction Program::function_of(int32_t kind) const {
  if (shape_.value_size && kind == SB_ROTATE) return kernels_.rotate_latents[shape_.element][shape_.kv_element];
  if (shape_.value_size && kind == SB_ATTEND) return kernels_.attend_to_latents[shape_.element][shape_.kv_element];
  if (kind == SB_ROTATE) return kernels_.rotate[shape_.element][shape_.kv_element];
  if (kind == SB_ATTEND) return kernels_.attend[shape_.element][shape_.kv_element];
  return kernels_.tile[shape_.element][kind];
}

// Lets several threads compute a tile of products with few rows, which read weights for a few
// microseconds a tile. Returns false if there is no memory.
bool Program::share_tiles() {
  ++step_;
  int64_t count = 0;
  for (const Phase& phase : phases_) count += std::max(phase.tiles, phase.most_tiles);
  if (!written_.reserve(count * static_cast<int64_t>(sizeof(std::atomic<uint32_t>)))) return false;
  auto* next = reinterpret_cast<std::atomic<uint32_t>*>(written_.data());
  for (Phase& phase : phases_) {
    if (!is_product(*phase.op) || phase.rows / std::max(1, copies_of(phase.op->src)) > kSharedRows) continue;
    phase.written = next;
    phase.step = step_;
    next += std::max(phase.tiles, phase.most_tiles);
  }
  return true;
}

// Lets attention rotate its own inputs. With one token in each sequence, no sequence and no head reads
// the result of another one's rotation, unless that writes latents, which all heads read.
void Program::join_rotations() {
  for (size_t i = 0; i + 1 < ops_.size(); ++i) {
    if (ops_[i].kind != SB_ROTATE || ops_[i + 1].kind != SB_ATTEND) continue;
    phases_[i + 1].rotation = &phases_[i];
    tiles_[i] = 0;
  }
}

// Fills after_, from the last phase to the first.
void Program::plan_ahead() {
  const auto threads = static_cast<size_t>(num_threads_);
  std::vector<Stretch> next(threads);
  for (size_t i = phases_.size(); i-- > 0;) {
    std::copy(next.begin(), next.end(), after_.begin() + static_cast<int64_t>(i * threads));
    const Phase& phase = phases_[i];
    if (has_experts(*phase.op)) std::fill(next.begin(), next.end(), Stretch{});  // not known yet
    if (!is_product(*phase.op) || !phase.tiles) continue;
    for (int32_t t = 0; t < num_threads_; ++t) {
      const int32_t first = share_start(phase.tiles, t, num_threads_);
      const int32_t end = share_start(phase.tiles, t + 1, num_threads_);
      next[static_cast<size_t>(t)] = weight_of_share(phase, first, end);
    }
  }
}

// Returns the memory that a thread reads after a tile of a product; nothing for other tiles.
Stretch Program::after(int32_t phase, int32_t tile, int32_t thread) const {
  const Phase& p = phases_[static_cast<size_t>(phase)];
  if (!is_product(*p.op)) return {};
  const bool has_more = tile >= share_start(p.tiles, thread, num_threads_) &&
                        tile + 1 < share_start(p.tiles, thread + 1, num_threads_);
  if (has_more) return {weight_of(phase, tile + 1), nullptr};
  return after_phase(phase, thread);
}

// Returns the first weight that a tile reads.
const char* Program::weight_of(int32_t phase, int32_t tile) const {
  const Phase& p = phases_[static_cast<size_t>(phase)];
  const char* first = weight_of_first(p, tile);
  if (!has_experts(*p.op)) return first;
  const ExpertRows& rows = routing_of(static_cast<size_t>(phase)).parts()[static_cast<size_t>(tile / p.panel_tiles)];
  return first + rows.expert * p.panels * p.panel_bytes;
}

// Returns the weight that a thread reads after a phase.
Stretch Program::after_phase(int32_t phase, int32_t thread) const {
  const auto i = static_cast<size_t>(phase) * static_cast<size_t>(num_threads_);
  return after_[i + static_cast<size_t>(thread)];
}

int32_t Program::code_bytes_of(int32_t buffer) const {
  return code_bytes(buffers_[static_cast<size_t>(buffer)].row);
}

View Program::view(int32_t buffer) const {
  const auto i = static_cast<size_t>(buffer);
  const bool is_shared = buffers_[i].row == SB_SHARED;
  char* data = is_shared ? group_->slot(exchange_, group_->rank()) : memory_[i].data();
  return {data, stride(buffers_[i])};
}

Phase Program::plan(size_t index, const SbBatch& batch) {
  const SbOp& op = ops_[index];
  Phase phase{};
  phase.op = &op;
  phase.shape = &shapes_[index];
  phase.batch = &batch;
  phase.src = view(op.src);
  phase.dst = view(op.dst);
  phase.rows = rows_of(op, batch);
  phase.gate = view(op.gate);
  phase.src_code_bytes = code_bytes_of(op.src);
  phase.dst_code_bytes = code_bytes_of(op.dst);
  phase.depth = phase.src_code_bytes ? phase.src.stride / coded_group_bytes(phase.src_code_bytes)
                                     : phase.src.stride;
  if (op.num_matrices && op.src_step) phase.depth = op.src_step;
  phase.pool = pool_memory_;
  phase.block_bytes = block_bytes_;
  phase.place = place_of(op);
  phase.tasks = tasks_.data();
  if (op.adapter) plan_adapter(phase);
  if (op.kind == SB_SUM) plan_sum(phase);
  if (op.kind == SB_GATED_NORM) phase.num_shares = op.mode == SB_NORMED_BY_SQUARES && group_ ? group_->num_ranks() : 1;
  if (op.kind == SB_GATHER || op.kind == SB_MIX) phase.routed = routing_of(index).routed();
  const bool is_idle = op.adapter && op.kind != SB_LINEAR && !batch.adapters;
  if (is_idle) return phase;
  if (op.kind == SB_SHRINK) {
    phase.tiles = phase.num_adapter_rows * phase.panel_tiles;
  } else if (has_experts(op)) {
    plan_experts(phase, routing_of(index));
  } else if (is_product(op)) {
    plan_product(phase);
  } else if (op.kind == SB_ATTEND) {
    phase.heads_of_tile = heads_of_tile(*phase.shape);
    phase.tiles = static_cast<int32_t>(tasks_.size()) * (phase.shape->num_heads / phase.heads_of_tile);
  } else if (units_of(op).bytes) {
    plan_states(phase);
  } else {
    phase.rows_per_tile = static_cast<int32_t>(
        std::clamp<int64_t>(ceil_div(phase.rows, 4 * num_threads_), 1, 16));
    phase.tiles = static_cast<int32_t>(ceil_div(phase.rows, phase.rows_per_tile));
  }
  if (op.kind == SB_ROUTE) {
    const auto& how = *static_cast<const SbRouting*>(op.weight);
    routing_of(index).begin(how, phase.rows, phase.tiles);
  }
  if (op.kind == SB_HEAD) {
    const auto size = static_cast<size_t>(phase.tiles * phase.rows);
    best_.assign(size, Best{-INFINITY, 0, true});
    phase.best = best_.data();
  }
  return phase;
}

int64_t Program::rows_of(const SbOp& op, const SbBatch& batch) const {
  if (op.kind == SB_HEAD || (op.kind == SB_NORM && (op.mode & SB_OF_ROWS))) return batch.num_rows;
  const bool settles = batch.settled, is_kept = op.kind == SB_KEEP;
  if (is_kept && !settles) return batch.num_tokens ? static_cast<int64_t>(kept_tokens_.size()) : 0;
  if (settles && !is_kept && !units_of(op).bytes) return 0;
  const int64_t copies = op.kind == SB_MIX ? 0 : copies_of(op.kind == SB_GATHER ? op.dst : op.src);
  return batch.num_tokens * std::max<int64_t>(1, copies);
}

// Cuts the columns of a product to tiles.
static void plan_panels(Phase& phase, int64_t wanted, bool is_shared) {
  const SbOp& op = *phase.op;
  const bool interleaved = op.kind == SB_LINEAR && op.mode == SB_GATED;
  phase.panels = interleaved ? ceil_div(op.n / 2, kPanel / 2) : ceil_div(op.n, kPanel);
  phase.panel_bytes = panel_bytes(op.storage, phase.depth * (phase.src_code_bytes ? kGroup : 1));
  int64_t panels = phase.panels / wanted;
  if (is_shared) panels = std::min(panels, kSharedBytes / phase.panel_bytes);
  phase.panels_per_tile = static_cast<int32_t>(std::max<int64_t>(1, panels));
  phase.panel_tiles = static_cast<int32_t>(ceil_div(phase.panels, phase.panels_per_tile));
}

// Bytes of a block before the K and V of an op.
int64_t Program::place_of(const SbOp& op) const {
  constexpr int64_t bytes[SB_NUM_ELEMENTS] = {4, 2, 1, 1};
  const int64_t scale = shape_.kv_element == SB_INT8 ? kFloatBytes : 0;
  const int64_t head = (shape_.value_size ? 1 : 2) * (bytes[shape_.kv_element] * shape_.head_size + scale) * shape_.block_size;
  return op.layer * shape_.num_kv_heads * head;
}

// Leaves the number of tiles to SB_ROUTE.
void Program::plan_experts(Phase& phase, const Routing& routing) const {
  const int64_t parts = routing.most_parts();
  if (!parts) return;
  const bool is_shared = phase.rows / copies_of(phase.op->src) <= kSharedRows;
  plan_panels(phase, ceil_div(num_threads_ * kTilesAThread, parts), is_shared);
  if (parts * phase.panel_tiles > Pool::kMostTiles) throw std::length_error("too many tiles");
  phase.rows_per_tile = kExpertRows;
  phase.most_tiles = static_cast<int32_t>(parts) * phase.panel_tiles;
}

void Program::plan_product(Phase& phase) const {
  if (!phase.rows) return;
  phase.rows_per_tile = rows_of_tile(phase, shape_.element);
  const int64_t row_tiles = ceil_div(phase.rows, phase.rows_per_tile) * std::max(1, phase.op->num_matrices);
  plan_panels(phase, ceil_div(num_threads_ * kTilesAThread, row_tiles), phase.rows <= kSharedRows);
  phase.tiles = static_cast<int32_t>(row_tiles) * phase.panel_tiles;
}

// Groups the rows of each adapter, in the order of the batch.
void Program::plan_adapters(const SbBatch& batch) {
  adapter_rows_.clear();
  if (!batch.adapters) return;
  std::vector<int32_t> open(static_cast<size_t>(num_adapters_), -1);
  for (int32_t row = 0; row < batch.num_tokens; ++row) {
    const int32_t adapter = batch.adapters[row];
    if (adapter < 0) continue;
    int32_t& last = open[static_cast<size_t>(adapter)];
    if (last < 0 || adapter_rows_[static_cast<size_t>(last)].count == kAdapterRows) {
      last = static_cast<int32_t>(adapter_rows_.size());
      adapter_rows_.push_back({adapter, 0, {}});
    }
    AdapterRows& rows = adapter_rows_[static_cast<size_t>(last)];
    rows.rows[rows.count++] = row;
  }
}

void Program::plan_adapter(Phase& phase) const {
  const int32_t site = phase.op->adapter - 1;
  if (!phase.batch->adapters || site >= num_sites_) return;
  phase.panel_tiles =
      static_cast<int32_t>(ceil_div(adapter_columns_[static_cast<size_t>(site)], kHalfPanel));
  if (!phase.panel_tiles) return;
  phase.adapters = adapters_ + site;
  phase.adapter_stride = num_sites_;
  phase.adapter_rows = adapter_rows_.data();
  phase.num_adapter_rows = static_cast<int32_t>(adapter_rows_.size());
  phase.shrunk = view(phase.op->shrunk);
}

// Divides the heads of a scan among tiles, and the columns of a sequence or head among as many as there is use for.
void Program::plan_states(Phase& phase) const {
  const SbOp& op = *phase.op;
  const StateUnits units = units_of(op);
  const int64_t heads = op.kind == SB_SCAN ? static_cast<const SbScan*>(op.weight)->num_heads : 1;
  const int64_t whole = phase.batch->states.num_seqs * heads;
  if (!whole) return;
  const int64_t most = ceil_div(units.count, heads * kUnitsOfTile);
  phase.parts = static_cast<int32_t>(std::clamp<int64_t>(ceil_div(kStateTiles * num_threads_, whole), 1, most));
  if (whole * phase.parts > Pool::kMostTiles) throw std::length_error("too many tiles");
  phase.tiles = static_cast<int32_t>(whole * phase.parts);
  phase.zeros = reinterpret_cast<const float*>(zeros_.data());
}

void Program::plan_sum(Phase& phase) {
  phase.src.data = group_->slot(exchange_, 0);
  phase.share_floats = group_->slot_bytes() / kFloatBytes;
  phase.num_shares = group_->num_ranks();
  phase.exchange = exchange_;
  if (phase.rows) ++exchange_;
}

void Program::plan_attention(const SbBatch& batch) {
  tasks_.clear();
  const int32_t at_once = std::max(1, task_rows_ / most_group_);
  for (int32_t seq = 0; seq < batch.attention.num_seqs; ++seq) {
    const auto end = static_cast<int32_t>(batch.attention.query_start[seq + 1]);
    for (auto first = static_cast<int32_t>(batch.attention.query_start[seq]); first < end; first += at_once)
      tasks_.push_back({seq, first, std::min(at_once, end - first)});
  }
  const auto cost = [&](const AttendTask& task) {  // the longest first, so that all end together
    return batch.positions[task.first] * (task.count + 4);
  };
  std::stable_sort(tasks_.begin(), tasks_.end(),
                   [&](const AttendTask& a, const AttendTask& b) { return cost(a) > cost(b); });
}

// The query heads that attend together: those of a K and V head. Many read latents, which few tasks divide among
// threads; a row's bits do not depend on what is beside it.
int32_t Program::heads_of_tile(const SbShape& shape) const {
  int32_t heads = shape.num_heads / shape.num_kv_heads;
  const auto tasks = static_cast<int32_t>(tasks_.size());
  while (shape.value_size && heads % 2 == 0 && heads > kFewestHeads &&
         tasks * (shape.num_heads / heads) < 2 * num_threads_)
    heads /= 2;
  return heads;
}

// Finds each row's best token, and gives rank 0 of a group what the others have. Returns false if the
// ranks were called off.
bool Program::reduce(const SbBatch& batch) {
  for (const Phase& phase : phases_) {
    if (phase.op->kind != SB_HEAD || !phase.rows) continue;
    for (int64_t row = 0; row < phase.rows; ++row)
      for (int32_t tile = 1; tile < phase.tiles; ++tile)
        take_better(phase.best[row], phase.best[tile * phase.rows + row]);
    if (group_ && !(gather_best(phase) && gather_logits(batch))) return false;
    for (int64_t row = 0; row < phase.rows; ++row) {
      batch.argmax[row] = phase.best[row].value > -INFINITY ? phase.best[row].token : -1;
      batch.is_finite[row] = phase.best[row].is_finite;
    }
  }
  return true;
}

// Rank 0 takes rows of the other ranks, as many at once as a slot holds. put(row, to) writes one,
// take(row, rank, from) reads it.
template <class Put, class Take>
bool Program::gather(int64_t rows, int64_t row_bytes, Put&& put, Take&& take) {
  const int64_t at_once = group_->slot_bytes() / row_bytes;
  for (int64_t first = 0; first < rows; first += at_once, ++exchange_) {
    const int64_t count = std::min(at_once, rows - first);
    char* own = group_->slot(exchange_, group_->rank());
    for (int64_t i = 0; group_->rank() && i < count; ++i) put(first + i, own + i * row_bytes);
    if (!group_->join(exchange_)) return false;
    for (int32_t rank = 1; !group_->rank() && rank < group_->num_ranks(); ++rank)
      for (int64_t i = 0; i < count; ++i)
        take(first + i, rank, group_->slot(exchange_, rank) + i * row_bytes);
  }
  return true;
}

bool Program::gather_best(const Phase& phase) {
  return gather(
      phase.rows, sizeof(Best),
      [&](int64_t row, char* to) { std::memcpy(to, &phase.best[row], sizeof(Best)); },
      [&](int64_t row, int32_t, const char* from) {
        Best other;
        std::memcpy(&other, from, sizeof other);
        take_better(phase.best[row], other);
      });
}

bool Program::gather_logits(const SbBatch& batch) {
  const int64_t rows = 1 + *std::max_element(batch.logits_of_row, batch.logits_of_row + batch.num_rows);
  const int64_t vocab = shape_.vocab_size, most = tokens_of_rank();
  const auto columns = [=](float* logits, int64_t row, int32_t rank) {
    return logits + row * vocab + rank * most;
  };
  const auto bytes = [=](int32_t rank) {
    return static_cast<size_t>(std::min(most, vocab - rank * most) * kFloatBytes);
  };
  return gather(
      rows, most * kFloatBytes,
      [&](int64_t row, char* to) {
        std::memcpy(to, columns(batch.logits, row, group_->rank()), bytes(group_->rank()));
      },
      [&](int64_t row, int32_t rank, const char* from) {
        std::memcpy(columns(batch.logits, row, rank), from, bytes(rank));
      });
}

// The tokens whose logits a rank computes; the last one has the rest.
int64_t Program::tokens_of_rank() const { return ceil_div(shape_.vocab_size, group_->num_ranks()); }

}  // namespace sb
