// A pause of a thread that spins.
#pragma once

#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sb {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace sb
