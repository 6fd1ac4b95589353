#include "program/routing.h"

#include <algorithm>
#include <cmath>

namespace sb {

namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Turns scores to shares of all experts.
void share(const SbRouting& how, const float* scores, float* shares) {
  const int32_t n = how.num_experts;
  if (how.function == SB_SIGMOID) {
    for (int32_t i = 0; i < n; ++i) shares[i] = sigmoid(scores[i]);
    return;
  }
  const float top = *std::max_element(scores, scores + n);
  float sum = 0.0f;
  for (int32_t i = 0; i < n; ++i) sum += shares[i] = std::exp(scores[i] - top);
  for (int32_t i = 0; i < n; ++i) shares[i] /= sum;
}

// The index of the largest value that is not taken, the lowest of equals; one of what is no number, perhaps.
int32_t next_of(const float* values, const bool* taken, int32_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; ++i)
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  return best;
}

// Lets no expert be chosen but those of the groups that count.
void keep_groups(const SbRouting& how, float* values) {
  const int32_t size = how.num_experts / how.num_groups;
  float sums[SB_MOST_EXPERTS];
  bool kept[SB_MOST_EXPERTS] = {};
  for (int32_t g = 0; g < how.num_groups; ++g) {
    bool taken[SB_MOST_EXPERTS] = {};
    sums[g] = 0.0f;
    for (int32_t j = 0; j < std::min(size, how.num_summed); ++j) {
      const int32_t best = next_of(values + g * size, taken, size);
      taken[best] = true;
      sums[g] += values[g * size + best];
    }
  }
  for (int32_t j = 0; j < how.num_chosen_groups; ++j) kept[next_of(sums, kept, how.num_groups)] = true;
  for (int32_t i = 0; i < how.num_experts; ++i)
    if (!kept[i / size]) values[i] = -INFINITY;
}

}  // namespace

void Routing::begin(const SbRouting& how, int64_t num_tokens, int32_t num_tiles) {
  how_ = &how;
  num_tokens_ = num_tokens;
  tiles_left_ = num_tiles;
  const auto tokens = static_cast<size_t>(num_tokens), chosen = static_cast<size_t>(how.num_chosen);
  experts_.resize(tokens * chosen);
  rows_.resize(tokens * chosen);
  tokens_.resize(tokens * chosen);
  shares_.resize(tokens * (chosen + (how.has_common != 0)));
  starts_.resize(static_cast<size_t>(how.num_experts) + 1);
  parts_.clear();
  parts_.reserve(static_cast<size_t>(most_parts()));
}

int64_t Routing::most_parts() const {
  const int64_t rows = num_tokens_ * how_->num_chosen;
  return std::min<int64_t>(how_->num_experts, rows) + rows / kExpertRows;
}

Routed Routing::routed() const {
  const int32_t k = how_->num_chosen;
  return {tokens_.data(), rows_.data(), shares_.data(), k, k + (how_->has_common != 0)};
}

bool Routing::choose(int64_t first, int64_t end, const View& scores) {
  for (int64_t token = first; token < end; ++token)
    choose(token, static_cast<const float*>(scores.data) + token * scores.stride);
  if (tiles_left_.fetch_sub(1) != 1) return false;
  sort();
  return true;
}

// A share that is no number makes all of the token so.
void Routing::choose(int64_t token, const float* scores) {
  const int32_t n = how_->num_experts, k = how_->num_chosen;
  float shares[SB_MOST_EXPERTS], ranks[SB_MOST_EXPERTS];
  bool taken[SB_MOST_EXPERTS] = {};
  share(*how_, scores, shares);
  // Scores order as their shares do, and are not rounded.
  const bool by_scores = how_->function == SB_SOFTMAX && !how_->bias && how_->num_groups == 1;
  for (int32_t i = 0; i < n; ++i)
    ranks[i] = by_scores ? scores[i] : shares[i] + (how_->bias ? how_->bias[i] : 0.0f);
  if (how_->num_groups > 1) keep_groups(*how_, ranks);
  float* own = shares_.data() + token * (k + (how_->has_common != 0));
  float sum = 1e-20f;
  for (int32_t j = 0; j < k; ++j) {
    const int32_t best = next_of(ranks, taken, n);
    taken[best] = true;
    experts_[static_cast<size_t>(token * k + j)] = best;
    own[j] = shares[best];
    sum += own[j];
  }
  for (int32_t j = 0; j < k; ++j) {
    own[j] = (how_->renormalises ? own[j] / sum : own[j]) * how_->scale;
    if (how_->scales) own[j] *= how_->scales[experts_[static_cast<size_t>(token * k + j)]];
  }
  if (how_->has_common) own[k] = sigmoid(scores[n]);
}

// Counts the rows of each expert, and gives them places in the order of tokens.
void Routing::sort() {
  std::fill(starts_.begin(), starts_.end(), 0);
  for (const int32_t expert : experts_) ++starts_[static_cast<size_t>(expert) + 1];
  for (size_t i = 1; i < starts_.size(); ++i) {
    const int32_t count = starts_[i];
    starts_[i] += starts_[i - 1];
    const int32_t tiles = (count + kExpertRows - 1) / kExpertRows;
    const auto unit = static_cast<int32_t>(tiles ? round_up((count + tiles - 1) / tiles, kPanel) : 1);
    for (int32_t at = 0; at < count; at += unit)
      parts_.push_back({static_cast<int32_t>(i) - 1, starts_[i - 1] + at, std::min(unit, count - at)});
  }
  for (size_t i = 0; i < experts_.size(); ++i) {
    const int32_t row = starts_[static_cast<size_t>(experts_[i])]++;
    rows_[i] = row;
    tokens_[static_cast<size_t>(row)] = static_cast<int32_t>(i) / how_->num_chosen;
  }
}

}  // namespace sb
