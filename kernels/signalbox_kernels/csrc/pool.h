// A pool of threads that compute the phases of a step together.
//
// Tiles are claimed one by one from a counter: who lost its core to another process claims less, and
// nobody waits for a thread that holds no tile. A phase begins when all tiles of the one before are
// done. Waiting is spinning for some microseconds, then sleeping.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace sb {

class Pool {
 public:
  // What is computed tile by tile.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void tile(int32_t phase, int32_t tile, int32_t thread) = 0;
  };

  // The caller is one of the threads.
  Pool(int32_t num_threads, int32_t max_phases);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Computes tiles[phase] tiles of each phase, max_phases at most; returns when all are done.
  void run(Work& work, const std::vector<int32_t>& tiles);

 private:
  // Both words hold the step in the high half, so that a thread that comes late neither claims nor
  // waits for what is of another step.
  struct alignas(64) Counter {
    std::atomic<uint64_t> unclaimed{0};
    std::atomic<uint64_t> undone{0};
  };

  void serve(int32_t thread);
  void compute(uint32_t step, int32_t thread);
  bool claim(Counter& counter, uint32_t step, int32_t& remaining);
  void complete(Counter& counter);
  bool is_pending(const Counter& counter, uint32_t step) const;
  void wake();
  template <class Condition>
  void wait_while(Condition&& condition);

  Work* work_ = nullptr;
  std::vector<int32_t> tiles_;
  const int32_t max_phases_;
  std::unique_ptr<Counter[]> counters_;
  alignas(64) std::atomic<uint32_t> step_{0};
  alignas(64) std::atomic<uint32_t> event_{0};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace sb
