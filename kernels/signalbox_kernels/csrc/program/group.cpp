#include "program/group.h"

#include <chrono>
#include <climits>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

namespace sb {

namespace {

constexpr int64_t kNapNs = 100'000'000;  // of a sleep, at most: a call-off may come just before it
constexpr int64_t kPage = 4096;

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4,
              "ranks are processes, and the system waits for a word of 4 bytes");

int64_t header_bytes(int32_t num_ranks) { return (64 * (num_ranks + 2) + kPage - 1) / kPage * kPage; }

#if defined(__linux__)

// std::atomic waits for threads of its own process alone.
void sleep_while(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec most{0, kNapNs};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &most, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#else

void sleep_while(std::atomic<uint32_t>&, uint32_t) { std::this_thread::sleep_for(kSpinning); }

void wake_all(std::atomic<uint32_t>&) {}

#endif

}  // namespace

int64_t Group::bytes(int32_t num_ranks, int64_t slot_bytes) {
  return header_bytes(num_ranks) + 2 * num_ranks * slot_bytes;
}

Group::Group(void* memory, int32_t rank, int32_t num_ranks, int64_t slot_bytes)
    : rank_(rank),
      num_ranks_(num_ranks),
      slot_bytes_(slot_bytes),
      called_off_(static_cast<Word*>(memory)),
      sleepers_(called_off_ + 1),
      joined_(called_off_ + 2),
      slots_(static_cast<char*>(memory) + header_bytes(num_ranks)) {}

uint32_t Group::joined() const { return joined_[rank_].value.load(); }

char* Group::slot(uint32_t exchange, int32_t rank) const {
  return slots_ + (static_cast<int64_t>(exchange % 2) * num_ranks_ + rank) * slot_bytes_;
}

bool Group::join(uint32_t exchange, Stretch ahead) {
  std::atomic<uint32_t>& own = joined_[rank_].value;
  uint32_t before = exchange - 1;
  const bool is_first = own.compare_exchange_strong(before, exchange);
  // A rank that goes to sleep counts itself and looks again: one of the two sees the other.
  if (is_first && sleepers_->value.load()) wake_all(own);
  const auto began = std::chrono::steady_clock::now();
  bool is_met = true;
  for (int32_t i = 1; is_met && i < num_ranks_; ++i)
    is_met = wait_for((rank_ + i) % num_ranks_, exchange, ahead);
  using std::chrono::nanoseconds;
  if (is_first)  // of the rank's threads, so that their waits are not added up
    waited_ns_ += std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now() - began).count();
  return is_met;
}

void Group::call_off() {
  called_off_->value.store(1);
  for (int32_t i = 0; i < num_ranks_; ++i) wake_all(joined_[i].value);
}

// Ranks are one exchange apart at most, so numbers may wrap around.
bool Group::is_behind(int32_t rank, uint32_t exchange) const {
  return static_cast<int32_t>(joined_[rank].value.load() - exchange) < 0;
}

bool Group::wait_for(int32_t rank, uint32_t exchange, Stretch& ahead) {
  if (spin_while(ahead, [&] { return is_behind(rank, exchange); })) {
    std::atomic<uint32_t>& word = joined_[rank].value;
    sleepers_->value.fetch_add(1);
    while (!is_called_off()) {
      const uint32_t seen = word.load();
      if (!is_behind(rank, exchange)) break;
      sleep_while(word, seen);
    }
    sleepers_->value.fetch_sub(1);
  }
  return !is_called_off();
}

}  // namespace sb
