#include "program/pool.h"

#include <stdexcept>

namespace sb {

namespace {

uint64_t tagged(uint32_t step, int32_t count) {
  return static_cast<uint64_t>(step) << 32 | static_cast<uint32_t>(count);
}

// A share in one word: the low bits of its step, its first tile and its end.
constexpr int kTileBits = 22;
constexpr uint64_t kTileMask = (uint64_t{1} << kTileBits) - 1;
static_assert(kTileMask == Pool::kMostTiles);
constexpr uint32_t kStepMask = (1u << (64 - 2 * kTileBits)) - 1;

struct Share {
  uint32_t step;
  int32_t first, end;

  explicit Share(uint64_t word)
      : step(static_cast<uint32_t>(word >> 2 * kTileBits)),
        first(static_cast<int32_t>(word >> kTileBits & kTileMask)),
        end(static_cast<int32_t>(word & kTileMask)) {}
  Share(uint32_t of_step, int32_t from, int32_t to)
      : step(of_step & kStepMask), first(from), end(to) {}

  uint64_t word() const {
    return static_cast<uint64_t>(step) << 2 * kTileBits |
           static_cast<uint64_t>(first) << kTileBits | static_cast<uint64_t>(end);
  }
};

}  // namespace

Pool::Pool(int32_t num_threads, int32_t max_phases, void (*rest)())
    : num_threads_(num_threads),
      max_phases_(max_phases),
      rest_(rest),
      undone_(new Word[static_cast<size_t>(max_phases)]),
      shares_(new Word[static_cast<size_t>(max_phases) * static_cast<size_t>(num_threads)]),
      busy_(new Word[static_cast<size_t>(num_threads)]) {
  try {
    for (int32_t i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  } catch (...) {  // the system has no more threads, and a thread that is not joined ends the process
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  stopping_ = true;
  wake();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(Work& work, const std::vector<int32_t>& tiles) {
  work_ = &work;  // only threads that hold a tile of the running step read it
  const uint32_t step = step_.load() + 1;
  for (size_t i = 0; i < tiles.size(); ++i) {  // the other words stay at an older step
    if (tiles[i] > kMostTiles) throw std::length_error("too many tiles");
    lay_out(step, static_cast<int32_t>(i), tiles[i]);
  }
  step_.store(step);  // publishes all of them
  if (sleepers_.load()) wake();
  compute(step, 0);
  for (int32_t t = 1; t < num_threads_; ++t) busy_[t].value.wait(1);
}

// Divides the tiles of a phase among the threads, which see that once something is published after it.
void Pool::lay_out(uint32_t step, int32_t phase, int32_t count) {
  undone_[phase].value.store(tagged(step, count), std::memory_order_relaxed);
  Word* share = shares_.get() + static_cast<int64_t>(phase) * num_threads_;
  for (int32_t t = 0; t < num_threads_; ++t, ++share) {
    const Share of_thread(step, share_start(count, t, num_threads_), share_start(count, t + 1, num_threads_));
    share->value.store(of_thread.word(), std::memory_order_relaxed);
  }
}

void Pool::serve(int32_t thread) {
  uint32_t done = 0;
  while (true) {
    Stretch nothing;
    wait_while(nothing, [&] { return step_.load() == done && !stopping_.load(); });
    if (stopping_.load()) return;
    done = step_.load();
    compute(done, thread);
  }
}

void Pool::compute(uint32_t step, int32_t thread) {
  Stretch ahead;
  for (int32_t phase = 0; phase < max_phases_; ++phase) {
    Word& undone = undone_[phase];
    const auto pending = [&] { return is_pending(undone, step); };
    int32_t tile;
    busy_[thread].value.store(1);  // before this thread claims, so that `run` waits for it
    while (claim(phase, step, thread, tile))
      if (work_->tile(phase, tile, thread, ahead)) complete(undone);
    leave(thread);
    while (spin_while(ahead, pending))
      if (!compute_overdue(phase, step, thread, ahead)) sleep_while(pending);
  }
  rest_();
}

// Computes a tile that another thread has claimed and not finished; returns false if there is none.
bool Pool::compute_overdue(int32_t phase, uint32_t step, int32_t thread, Stretch& ahead) {
  busy_[thread].value.store(1);  // before it looks whether the step goes on
  int32_t tile = -1;
  if (is_pending(undone_[phase], step)) tile = work_->overdue(phase, thread);
  if (tile >= 0 && work_->tile(phase, tile, thread, ahead)) complete(undone_[phase]);
  leave(thread);
  return tile >= 0;
}

void Pool::leave(int32_t thread) {
  busy_[thread].value.store(0);
  busy_[thread].value.notify_one();
}

bool Pool::claim(int32_t phase, uint32_t step, int32_t thread, int32_t& tile) {
  Word* shares = shares_.get() + static_cast<int64_t>(phase) * num_threads_;
  if (claim_of(shares[thread], step, true, tile)) return true;
  for (int32_t i = 1; i < num_threads_; ++i)
    if (claim_of(shares[(thread + i) % num_threads_], step, false, tile)) return true;
  return false;
}

bool Pool::claim_of(Word& word, uint32_t step, bool from_front, int32_t& tile) {
  uint64_t seen = word.value.load();
  while (true) {
    const Share share(seen);
    if (share.step != (step & kStepMask) || share.first >= share.end) return false;
    const Share rest(step, share.first + from_front, share.end - !from_front);
    if (word.value.compare_exchange_weak(seen, rest.word())) {
      tile = from_front ? share.first : rest.end;
      return true;
    }
  }
}

void Pool::complete(Word& undone) {
  const bool is_last = static_cast<uint32_t>(undone.value.fetch_sub(1)) == 1;
  if (is_last && sleepers_.load()) wake();
}

bool Pool::is_pending(const Word& undone, uint32_t step) const {
  const uint64_t seen = undone.value.load();
  return static_cast<uint32_t>(seen >> 32) == step && static_cast<uint32_t>(seen) > 0;
}

void Pool::wake() {
  event_.fetch_add(1);
  event_.notify_all();
}

template <class Condition>
void Pool::sleep_while(Condition&& condition) {
  // A thread that changes the condition reads sleepers_ afterwards, and this thread checks the
  // condition again after it has incremented sleepers_: one of the two sees the other's change.
  sleepers_.fetch_add(1);
  while (true) {
    const uint32_t event = event_.load();
    if (!condition()) break;
    event_.wait(event);
  }
  sleepers_.fetch_sub(1);
}

template <class Condition>
void Pool::wait_while(Stretch& ahead, Condition&& condition) {
  if (spin_while(ahead, condition)) sleep_while(condition);
}

}  // namespace sb
