// A wait of some microseconds that does not sleep, and fetches what the thread reads afterwards.
#pragma once

#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sb {

// Memory that a thread will most likely read.
struct Stretch {
  const char* first = nullptr;
  const char* end = nullptr;
};

// Most waits within a step are shorter. A longer one is for a thread that has lost its core and may
// then use this one.
constexpr std::chrono::microseconds kSpinning{25};
constexpr int kSpinsAtOnce = 8;  // between two looks at the clock

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Fetches a few lines of the memory ahead; returns false if there is nothing left.
inline bool fetch(Stretch& ahead) {
  constexpr int line = 64, lines = 8;
  if (ahead.first >= ahead.end) return false;
  for (int i = 0; i < lines; ++i) __builtin_prefetch(ahead.first + i * line, 0, 2);
  ahead.first += lines * line;
  return true;
}

// Returns whether the condition is still true after a while.
template <class Condition>
bool spin_while(Stretch& ahead, Condition&& condition) {
  if (!condition()) return false;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + kSpinning;
  do {
    for (int i = 0; i < kSpinsAtOnce; ++i) {
      if (!condition()) return false;
      if (!fetch(ahead)) relax();
    }
  } while (Clock::now() < end);
  return true;
}

}  // namespace sb
