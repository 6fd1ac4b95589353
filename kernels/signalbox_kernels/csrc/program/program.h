// A model's step as a list of ops over buffers, cut into phases and tiles for a pool of threads.
#pragma once

#include <memory>
#include <vector>

#include "program/group.h"
#include "program/pool.h"
#include "program/routing.h"
#include "program/step.h"

namespace sb {

// Memory on a cache line's boundary, zeroed; grows and never shrinks.
class Memory {
 public:
  ~Memory();
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  bool reserve(int64_t bytes);
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Program final : public Pool::Work {
 public:
  Program(const SbShape& shape, std::vector<SbOp> ops, std::vector<SbBuffer> buffers,
          int32_t num_threads, const KernelTable& kernels);

  void bind(char* pool, int64_t block_bytes);
  void set_adapters(const SbAdapter* table, int32_t num_adapters, int32_t num_sites);
  void join(Group* group) { group_ = group; }
  int32_t run(const SbBatch& batch);
  bool reserve(int64_t num_rows);
  char* buffer(int32_t index) const { return memory_[static_cast<size_t>(index)].data(); }
  bool tile(int32_t phase, int32_t tile, int32_t thread, Stretch& ahead) override;
  int32_t overdue(int32_t phase, int32_t thread) override;
  void profile(int64_t* ns) { profile_ns_ = ns; }
  Pool& pool() { return pool_; }
  int32_t num_threads() const { return num_threads_; }

 private:
  TileFunction function_of(int32_t kind) const;
  Phase plan(size_t index, const SbBatch& batch);
  void plan_ahead();
  void join_rotations();
  bool share_tiles();
  Stretch after(int32_t phase, int32_t tile, int32_t thread) const;
  Stretch after_phase(int32_t phase, int32_t thread) const;
  void plan_product(Phase& phase) const;
  void plan_experts(Phase& phase, const Routing& routing) const;
  int64_t rows_of(const SbOp& op, const SbBatch& batch) const;
  int32_t copies_of(int32_t buffer) const { return buffers_[static_cast<size_t>(buffer)].copies; }
  int64_t element_bytes(int32_t buffer) const;
  bool has_experts(const SbOp& op) const { return op.kind == SB_LINEAR && copies_of(op.src); }
  void route(int32_t phase, int32_t tile);
  Routing& routing_of(size_t op) const;
  const char* weight_of(int32_t phase, int32_t tile) const;
  bool compute(int32_t phase, const Claim& claim) const;
  bool compute_head(const Phase& phase, const Claim& claim) const;
  int32_t heads_of_tile(const SbShape& shape) const;
  int64_t pairs_bytes() const;
  void plan_attention(const SbBatch& batch);
  int64_t place_of(const SbOp& op) const;
  void plan_adapters(const SbBatch& batch);
  void plan_adapter(Phase& phase) const;
  int32_t code_bytes_of(int32_t buffer) const;
  View view(int32_t buffer) const;
  void plan_sum(Phase& phase);
  void plan_states(Phase& phase) const;
  bool has_states(const SbBatch& batch) const;
  bool reserve_kept(const SbBatch& batch);
  void keep(int32_t phase, int32_t tile) const;
  bool fits_group(int64_t num_rows) const;
  int64_t tokens_of_rank() const;
  bool reduce(const SbBatch& batch);
  template <class Put, class Take>
  bool gather(int64_t rows, int64_t row_bytes, Put&& put, Take&& take);
  bool gather_best(const Phase& phase);
  bool gather_logits(const SbBatch& batch);

  const SbShape shape_;
  std::vector<SbShape> shapes_;  // of each op, with its own heads
  const std::vector<SbOp> ops_;
  const std::vector<SbBuffer> buffers_;
  const int32_t num_threads_;
  const KernelTable& kernels_;
  std::vector<Memory> memory_;
  std::vector<Memory> kept_;  // [ops_]: rows of each SB_KEEP
  std::vector<Memory> scratch_;
  std::vector<Phase> phases_;
  std::vector<int32_t> tiles_;
  std::vector<Stretch> after_;  // [phases, num_threads]: the weight read after a phase
  std::vector<AttendTask> tasks_;
  std::vector<Best> best_;
  std::vector<int32_t> routing_of_;  // [ops]: of the last SB_ROUTE up to it, or -1
  std::unique_ptr<Routing[]> routings_;
  Group* group_ = nullptr;
  uint32_t exchange_ = 0;  // the next one
  std::atomic<bool> is_called_off_{false};
  const SbAdapter* adapters_ = nullptr;  // [num_adapters_, num_sites_]
  int32_t num_adapters_ = 0, num_sites_ = 0;
  std::vector<int32_t> adapter_columns_;  // [num_sites_]: the most of any adapter
  std::vector<AdapterRows> adapter_rows_;
  Memory written_;  // see Phase
  std::vector<int64_t> kept_tokens_;  // of the last batch with tokens: those whose rows are kept
  int32_t state_pages_ = 0;  // of each state; 0 if no op has states
  int64_t state_page_bytes_ = 0;
  Memory zeros_;             // see Phase
  uint32_t step_ = 0;
  int32_t task_rows_;
  int32_t most_group_ = 1, most_head_ = 0;  // heads of any op that share K and V, and their size
  char* pool_memory_ = nullptr;
  int64_t block_bytes_ = 0;
  int64_t* profile_ns_ = nullptr;  // [num_threads, SB_NUM_KINDS], or null
  Pool pool_;  // last: its threads stop before what they use goes
};

}  // namespace sb
