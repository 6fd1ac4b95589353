// A pool of threads that compute the phases of a step together.
//
// Each thread has a share of a phase's tiles, a run of them, so that it reads consecutive memory and
// knows what it reads next. Tiles are claimed one by one: from the front of the thread's own share, and
// then from the back of the others'. So a thread that lost its core to another process claims less, and
// no thread waits for one that holds no tile. A phase begins when all tiles of the one before are done.
// A waiting thread prefetches what it reads next and spins for some microseconds. Then it computes a
// tile that a thread without a core holds, where the work allows that, or sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "program/spin.h"

namespace sb {

// Returns the first of a thread's tiles, of `count` in all; the first of thread + 1 is the end.
constexpr int32_t share_start(int32_t count, int32_t thread, int32_t num_threads) {
  return static_cast<int32_t>(static_cast<int64_t>(count) * thread / num_threads);
}

class Pool {
 public:
  // Work that is computed tile by tile.
  class Work {
   public:
    virtual ~Work() = default;
    // Computes a tile; returns false if another thread has done so meanwhile. Sets the memory to
    // fetch while the thread waits, if that is not as before.
    virtual bool tile(int32_t phase, int32_t tile, int32_t thread, Stretch& ahead) = 0;
    // Returns a claimed tile that this thread may compute, too, or -1.
    virtual int32_t overdue(int32_t phase, int32_t thread) = 0;
  };

  // The caller is one of the threads. Each calls `rest` at the end of its part of a step. Throws
  // std::system_error if a thread cannot be started.
  Pool(int32_t num_threads, int32_t max_phases, void (*rest)());
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Computes tiles[phase] tiles of each phase, max_phases at most; returns when all are done, and no
  // thread computes one. Throws std::length_error for a phase of 2^22 tiles or more.
  void run(Work& work, const std::vector<int32_t>& tiles);

  // Changes the number of tiles of a phase, which was 0; called while a tile of an earlier one is computed.
  void set_tiles(int32_t phase, int32_t count) { lay_out(step_.load(), phase, count); }

  static constexpr int32_t kMostTiles = (1 << 22) - 1;

 private:
  // The words hold the number of their step beside the counts, so that a late thread neither claims
  // nor waits for tiles of another step.
  struct alignas(64) Word {
    std::atomic<uint64_t> value{0};
  };

  void stop();
  void lay_out(uint32_t step, int32_t phase, int32_t count);
  void serve(int32_t thread);
  void compute(uint32_t step, int32_t thread);
  bool compute_overdue(int32_t phase, uint32_t step, int32_t thread, Stretch& ahead);
  void leave(int32_t thread);
  bool claim(int32_t phase, uint32_t step, int32_t thread, int32_t& tile);
  bool claim_of(Word& share, uint32_t step, bool from_front, int32_t& tile);
  void complete(Word& undone);
  bool is_pending(const Word& undone, uint32_t step) const;
  void wake();
  template <class Condition>
  void sleep_while(Condition&& condition);
  template <class Condition>
  void wait_while(Stretch& ahead, Condition&& condition);

  Work* work_ = nullptr;
  const int32_t num_threads_;
  const int32_t max_phases_;
  void (*const rest_)();
  std::unique_ptr<Word[]> undone_;  // [max_phases]
  std::unique_ptr<Word[]> shares_;  // [max_phases, num_threads]
  std::unique_ptr<Word[]> busy_;    // [num_threads]: whether the thread may use work_
  alignas(64) std::atomic<uint32_t> step_{0};
  alignas(64) std::atomic<uint32_t> event_{0};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace sb
