// The states of sequences, in pages of the pool: where the units of an op lie, and the runs of rows that change them.
#pragma once

#include "isa/simd.h"
#include "program/step.h"

namespace SB_NS {

constexpr int kUnit = SB_UNIT_COLUMNS;

// The units of one op's states.
class Units {
 public:
  Units(const sb::Phase& phase, const SbPlace& place, int64_t unit_bytes)
      : phase_(phase),
        place_(place),
        unit_bytes_(unit_bytes),
        in_first_((place.page_bytes - place.offset) / unit_bytes),
        in_page_(place.page_bytes / unit_bytes) {}

  // Returns a unit of the state that has these pages.
  float* of(const int32_t* pages, int64_t unit) const {
    int64_t page = place_.page, offset = place_.offset;
    if (unit >= in_first_) {
      unit -= in_first_;
      page += 1 + unit / in_page_;
      unit %= in_page_;
      offset = 0;
    }
    char* start = phase_.pool + pages[page] * phase_.block_bytes;
    return reinterpret_cast<float*>(start + offset + unit * unit_bytes_);
  }

  // Returns it to be read; null pages are a state of zeros.
  const float* before(const int32_t* pages, int64_t unit) const { return pages ? of(pages, unit) : phase_.zeros; }

 private:
  const sb::Phase& phase_;
  const SbPlace& place_;
  const int64_t unit_bytes_, in_first_, in_page_;
};

// Neighbouring rows of a sequence, and the pages of the states before and behind them.
struct Run {
  int64_t first, end;
  const int32_t* before;  // null: zeros
  const int32_t* behind;  // null: none is left
};

template <class F>
SB_INLINE void each_run(const SbStates& states, int64_t seq, F&& f) {
  const int32_t* before = states.reads + seq * states.num_pages;
  if (*before < 0) before = nullptr;
  for (int32_t i = states.first_runs[seq]; i < states.first_runs[seq + 1]; ++i) {
    const int32_t* behind = states.writes + static_cast<int64_t>(i) * states.num_pages;
    if (*behind < 0) behind = nullptr;
    f(Run{states.run_start[i], states.run_start[i + 1], before, behind});
    before = behind;
  }
}

}  // namespace SB_NS
