// The experts that tokens choose in one layer of a step, and the rows that each expert computes.
//
// Threads choose for tokens of their own; the one that is the last sorts the rows of all by expert. It is
// compiled once for all instruction sets, so that equal scores choose alike.
#pragma once

#include <atomic>
#include <vector>

#include "program/step.h"

namespace sb {

constexpr int32_t kExpertRows = 192;  // of one expert that pass its weight together, at most

// Neighbouring routed rows of one expert.
struct ExpertRows {
  int32_t expert;
  int32_t first;
  int32_t count;
};

class Routing {
 public:
  // Begins a step, whose tokens choose in `num_tiles` tiles.
  void begin(const SbRouting& how, int64_t num_tokens, int32_t num_tiles);

  // Chooses for tokens [first, end) of a tile. Returns true to one thread: when all tokens have chosen, and
  // their rows are sorted.
  bool choose(int64_t first, int64_t end, const View& scores);

  // The rows of each product, and as many as there may be; known when all tokens have chosen.
  const std::vector<ExpertRows>& parts() const { return parts_; }
  int64_t most_parts() const;

  Routed routed() const;

 private:
  void choose(int64_t token, const float* scores);
  void sort();

  const SbRouting* how_ = nullptr;
  int64_t num_tokens_ = 0;
  std::atomic<int32_t> tiles_left_{0};
  std::vector<int32_t> experts_;  // [num_tokens, num_chosen]
  std::vector<int32_t> rows_, tokens_;  // see Routed
  std::vector<float> shares_;
  std::vector<int32_t> starts_;  // [num_experts + 1]: the first row of each
  std::vector<ExpertRows> parts_;
};

}  // namespace sb
