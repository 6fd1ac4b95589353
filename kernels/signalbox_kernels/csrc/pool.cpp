#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sb {

namespace {

constexpr int kSpins = 2000;  // some tens of microseconds: longer than most waits within a step

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

uint64_t tagged(uint32_t step, int32_t count) {
  return static_cast<uint64_t>(step) << 32 | static_cast<uint32_t>(count);
}

}  // namespace

Pool::Pool(int32_t num_threads, int32_t max_phases)
    : max_phases_(max_phases), counters_(new Counter[max_phases]) {
  for (int32_t i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
  stopping_ = true;
  wake();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(Work& work, const std::vector<int32_t>& tiles) {
  work_ = &work;  // nobody reads it, or tiles_, who does not hold a tile of the running step
  tiles_ = tiles;
  const uint32_t step = step_.load() + 1;
  for (size_t i = 0; i < tiles.size(); ++i) {  // the other counters stay at an older step
    counters_[i].undone.store(tagged(step, tiles[i]));
    counters_[i].unclaimed.store(tagged(step, tiles[i]));
  }
  step_.store(step);
  if (sleepers_.load()) wake();
  compute(step, 0);
}

void Pool::serve(int32_t thread) {
  uint32_t done = 0;
  while (true) {
    wait_while([&] { return step_.load() == done && !stopping_.load(); });
    if (stopping_.load()) return;
    done = step_.load();
    compute(done, thread);
  }
}

void Pool::compute(uint32_t step, int32_t thread) {
  for (int32_t phase = 0; phase < max_phases_; ++phase) {
    Counter& counter = counters_[phase];
    int32_t remaining;
    while (claim(counter, step, remaining)) {
      work_->tile(phase, tiles_[phase] - remaining, thread);
      complete(counter);
    }
    if (is_pending(counter, step)) wait_while([&] { return is_pending(counter, step); });
  }
}

bool Pool::claim(Counter& counter, uint32_t step, int32_t& remaining) {
  uint64_t seen = counter.unclaimed.load();
  while (static_cast<uint32_t>(seen >> 32) == step && static_cast<uint32_t>(seen) > 0)
    if (counter.unclaimed.compare_exchange_weak(seen, seen - 1)) {
      remaining = static_cast<int32_t>(static_cast<uint32_t>(seen));
      return true;
    }
  return false;
}

void Pool::complete(Counter& counter) {
  const bool is_last = static_cast<uint32_t>(counter.undone.fetch_sub(1)) == 1;
  if (is_last && sleepers_.load()) wake();
}

bool Pool::is_pending(const Counter& counter, uint32_t step) const {
  const uint64_t seen = counter.undone.load();
  return static_cast<uint32_t>(seen >> 32) == step && static_cast<uint32_t>(seen) > 0;
}

void Pool::wake() {
  event_.fetch_add(1);
  event_.notify_all();
}

template <class Condition>
void Pool::wait_while(Condition&& condition) {
  for (int i = 0; i < kSpins; ++i) {
    if (!condition()) return;
    relax();
  }
  // Who changes the condition looks at sleepers_ afterwards, and we look again after announcing
  // ourselves: one of the two sees the other.
  sleepers_.fetch_add(1);
  while (true) {
    const uint32_t event = event_.load();
    if (!condition()) break;
    event_.wait(event);
  }
  sleepers_.fetch_sub(1);
}

}  // namespace sb
