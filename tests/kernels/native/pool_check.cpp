// A pool whose first tile of each phase is held by a thread that goes on only after another thread has
// computed that tile. Prints "ok", or hangs, or says what is wrong.
#include <atomic>
#include <cstdio>
#include <thread>

#include "program/pool.h"

namespace {

constexpr int32_t kThreads = 3, kPhases = 4, kTiles = 7, kSteps = 200;

class Stalling final : public sb::Pool::Work {
 public:
  std::atomic<int32_t> written[kPhases][kTiles]{}, calls[kPhases]{}, inside{0};
  std::atomic<bool> is_wrong{false};

  bool tile(int32_t phase, int32_t tile, int32_t, sb::Stretch&) override {
    inside.fetch_add(1);
    for (int32_t i = 0; phase && i < kTiles; ++i)
      if (!written[phase - 1][i].load()) is_wrong = true;  // the phase before is not over
    std::atomic<int32_t>& mine = written[phase][tile];
    if (!tile && !calls[phase].fetch_add(1))
      while (!mine.load()) std::this_thread::yield();
    const bool is_first = !mine.exchange(1);
    inside.fetch_sub(1);
    return is_first;
  }

  int32_t overdue(int32_t phase, int32_t) override {
    for (int32_t i = 0; i < kTiles; ++i)
      if (!written[phase][i].load()) return i;
    return -1;
  }
};

}  // namespace

int main() {
  sb::Pool pool(kThreads, kPhases, [] {});
  for (int32_t step = 0; step < kSteps; ++step) {
    Stalling work;
    pool.run(work, std::vector<int32_t>(kPhases, kTiles));
    if (work.inside.load()) return std::puts("a thread still computes"), 1;
    if (work.is_wrong.load()) return std::puts("a phase began too early"), 1;
    for (const auto& phase : work.written)
      for (const auto& tile : phase)
        if (!tile.load()) return std::puts("a tile is missing"), 1;
  }
  std::puts("ok");
}
