#include "matching/matcher.h"

#include <algorithm>
#include <bit>

namespace {

constexpr int32_t kNumIndices = 2;
constexpr int32_t kLongRun = 4;              // the second index has runs of as many times min_match
constexpr int32_t kMostIndexed = 1 << 15;    // places of a call; a place takes some 20 ns
constexpr int32_t kMostPlaces = 256;

// The last tokens before a place, the newest of which is at -1.
struct Context {
  const int32_t* end;
  int32_t length;
};

int32_t num_equal(Context a, Context b, int32_t most) {
  most = std::min({a.length, b.length, most});
  int32_t count = 0;
  while (count < most && a.end[-1 - count] == b.end[-1 - count]) ++count;
  return count;
}

// One of a matcher's indices.
struct Index {
  int32_t run;  // tokens that are hashed
  int32_t shift;
  int32_t* heads;
  int32_t* links;

  Index(const SbMatcher& matcher, int32_t number)
      : run(number ? kLongRun * matcher.min_match : matcher.min_match),
        shift(64 - std::countr_zero(static_cast<uint32_t>(matcher.capacity))),
        heads(matcher.heads + int64_t{number} * matcher.capacity),
        links(matcher.links + int64_t{number} * matcher.capacity) {}

  int32_t& head(const int32_t* end) {
    uint64_t hash = 0;
    for (const int32_t* token = end - run; token != end; ++token)
      hash = (hash + static_cast<uint32_t>(*token) + 1) * 0x9E3779B97F4A7C15u;
    return heads[hash >> shift];
  }

  void add(const int32_t* text, int32_t place) {
    if (place < run) return;
    int32_t& last = head(text + place);
    links[place] = last;
    last = place;
  }
};

// Places of a text, the last first, before which equally many tokens are equal.
struct Places {
  int32_t count = 0;
  int32_t num_equal = 0;
  int32_t at[kMostPlaces];
};

void find(Index index, const int32_t* text, Context newest, int32_t max_match, Places& found) {
  if (newest.length < index.run) return;
  int32_t place = index.head(newest.end);
  for (int32_t i = 0; place && i < kMostPlaces; ++i, place = index.links[place]) {
    const int32_t equal = num_equal({text + place, place}, newest, max_match);
    if (equal < index.run || equal < found.num_equal) continue;
    if (equal > found.num_equal) found.count = 0;
    found.num_equal = equal;
    found.at[found.count++] = place;
  }
}

// The token that most places have next, of equally frequent ones that of the last place; leaves the places
// that have it. Returns false if those are fewer than `least`.
bool choose(Places& places, int32_t least, auto token_at, int32_t& chosen) {
  int32_t tokens[kMostPlaces], counts[kMostPlaces], num_tokens = 0;
  for (int32_t i = 0; i < places.count; ++i) {
    int32_t token = 0;
    if (!token_at(places.at[i], token)) continue;
    const int32_t kind = static_cast<int32_t>(std::find(tokens, tokens + num_tokens, token) - tokens);
    if (kind == num_tokens) {
      tokens[num_tokens] = token;
      counts[num_tokens++] = 0;
    }
    ++counts[kind];
  }
  const int32_t* most = std::max_element(counts, counts + num_tokens);
  if (!num_tokens || *most < least) return false;
  chosen = tokens[most - counts];
  const auto has_another = [&](int32_t place) {
    int32_t token = 0;
    return !token_at(place, token) || token != chosen;
  };
  places.count = static_cast<int32_t>(std::remove_if(places.at, places.at + places.count, has_another) - places.at);
  return true;
}

}  // namespace

extern "C" int32_t sb_match(SbMatcher* matcher, const int32_t* text, int32_t num_text,
                            const int32_t* newest, int32_t num_newest, int32_t most,
                            int32_t* following, int32_t* num_matched) {
  Index short_runs(*matcher, 0), long_runs(*matcher, 1);
  if (num_text < matcher->num_indexed) {  // another text
    std::fill_n(matcher->heads, int64_t{kNumIndices} * matcher->capacity, 0);
    matcher->num_indexed = 0;
  }
  const int32_t end = std::min(num_text, matcher->num_indexed + kMostIndexed);
  for (int32_t place = matcher->num_indexed; place < end; ++place) {
    short_runs.add(text, place);
    long_runs.add(text, place);
  }
  matcher->num_indexed = end;
  *num_matched = 0;
  if (end < num_text) return 0;

  Places places;
  const Context last{newest + num_newest, num_newest};
  if (long_runs.run <= matcher->max_match) find(long_runs, text, last, matcher->max_match, places);
  if (!places.count) find(short_runs, text, last, matcher->max_match, places);
  *num_matched = places.num_equal;
  const bool goes_on = text == newest;
  int32_t count = 0;
  const auto token_at = [&](int32_t place, int32_t& token) {
    const int32_t at = place + count;
    if (at >= num_text && !goes_on) return false;
    token = at < num_text ? text[at] : following[at - num_text];
    return true;
  };
  most = std::min(most, places.num_equal);
  const int32_t least = (places.count + 1) / 2;
  while (count < most && choose(places, least, token_at, following[count])) ++count;
  return count;
}
