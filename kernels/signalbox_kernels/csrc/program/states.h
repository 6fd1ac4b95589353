// The units of states that an op changes.
#pragma once

#include "program/api.h"

namespace sb {

constexpr int64_t kUnitRowBytes = 4 * SB_UNIT_COLUMNS;
constexpr int64_t kMostUnitBytes = kUnitRowBytes * SB_MOST_KEY_SIZE;
constexpr int64_t kUnitsOfTile = 2;  // that a scan computes at once
constexpr int64_t kDroppedBytes = kUnitsOfTile * kMostUnitBytes;  // of a thread, for a scan that leaves no state

struct StateUnits {
  const SbPlace* place = nullptr;
  int64_t bytes = 0;  // of each; 0 of an op without states
  int64_t count = 0;

  bool is_valid() const {
    return place->page >= 0 && place->offset >= 0 && place->offset % kUnitRowBytes == 0 && bytes > 0 && count > 0 &&
           place->offset + bytes <= place->page_bytes;
  }

  // The page behind the last one that has units, of a state's list.
  int32_t end_page() const {
    if (!bytes) return 0;
    const int64_t in_first = (place->page_bytes - place->offset) / bytes, in_page = place->page_bytes / bytes;
    const int64_t others = count > in_first ? (count - in_first + in_page - 1) / in_page : 0;
    return static_cast<int32_t>(place->page + 1 + others);
  }
};

inline StateUnits units_of(const SbOp& op) {
  if (op.kind == SB_CONVOLVE) {
    const auto& how = *static_cast<const SbConvolution*>(op.weight);
    return {&how.place, (how.width - 1) * kUnitRowBytes, how.num_channels / SB_UNIT_COLUMNS};
  }
  if (op.kind == SB_SCAN) {
    const auto& how = *static_cast<const SbScan*>(op.weight);
    return {&how.place, how.key_size * kUnitRowBytes,
            static_cast<int64_t>(how.num_heads) * how.value_size / SB_UNIT_COLUMNS};
  }
  return {};
}

// Whether an op of recurrent layers can be computed, and reads and writes columns that its buffers have.
bool is_valid_recurrent(const SbOp& op, const SbBuffer* buffers);

}  // namespace sb
