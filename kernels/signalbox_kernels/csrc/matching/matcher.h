// The C ABI of matching: where a text has the tokens that another one ends with, and what follows there.
#pragma once

#include <cstdint>

extern "C" {

// A text's index: by the hash of some tokens in a row, the places behind them, the last first. There are
// two: of min_match tokens, and of four times as many. A place is the number of tokens before it; 0 is none.
struct SbMatcher {
  int32_t min_match;    // tokens before a place that must be equal, at least 1
  int32_t max_match;    // tokens that are compared at most, at least min_match
  int32_t capacity;     // a power of two, at least 2; the text has no more tokens
  int32_t num_indexed;  // places below this one are indexed; 0 at first, written
  int32_t* heads;       // [2, capacity], zeros at first: the last place of each hash
  int32_t* links;       // [2, capacity], zeros at first: the place before, of the same hash
};

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

// Indexes what is new in a text, some tens of thousands of places at most. Unless some are left, looks for
// the place before which most tokens equal those that `newest` ends with, which may be the text itself;
// of the last 256 places that are found. Writes what follows there, at most `most` tokens and no more than
// are equal: what most such places have next, of equally frequent tokens that of the last place, and so on
// from the places that have it, while they are half of all or more. A text that is `newest` itself goes on
// with what is written. Returns the number of tokens written.
int32_t sb_match(SbMatcher* matcher, const int32_t* text, int32_t num_text, const int32_t* newest,
                 int32_t num_newest, int32_t most, int32_t* following, int32_t* num_matched);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
}
