// The C ABI of sampling: a batch of draws from rows of logits, in plain arrays.
//
// signalbox_worker/sampling/torch_sampler.py states the operations and their order, random.py the random
// numbers. A pointer to an array that no draw of the batch uses may be null.
#pragma once

#include <cstdint>

extern "C" {

enum SbDrawStatus : uint8_t {
  SB_DRAWN = 0,
  SB_NOT_FINITE = 1,  // a logit is NaN or infinite; nothing else is written
  SB_NONE_LEFT = 2,   // no token may be drawn
};

struct SbDraws {
  int32_t num_rows;
  int32_t vocab_size;
  int32_t token_stride;    // of tokens
  int32_t mask_stride;     // of masks, in words
  int32_t max_logprobs;    // columns of top_tokens and top_logprobs, at most 128
  const float* logits;          // [*, vocab_size]
  const int64_t* logits_row;    // [num_rows], and so are the columns that follow
  const int32_t* targets;       // null, or tokens to report instead of drawing any
  const uint64_t* keys;         // of the race, see random.py
  const float* temperature;     // 0 is greedy
  const float* top_p;
  const float* min_p;
  const float* typical_p;
  const int64_t* top_k;         // 0 keeps all
  const float* presence;        // penalties, or null
  const float* frequency;
  const float* repetition;
  const int64_t* owners;        // row of `tokens`
  const int64_t* num_prompt;    // tokens of the prompt, and all tokens, that penalties look at
  const int64_t* num_tokens;
  const int32_t* tokens;        // [*, token_stride]
  const int32_t* suppressed_end;  // runs as in api.h, or null
  const int32_t* suppressed;
  const int32_t* bias_end;
  const int32_t* bias_tokens;
  const float* biases;
  const int32_t* mask_of_row;   // row of masks, or negative; null: nothing is masked
  const uint32_t* masks;        // bit t % 32 of word t / 32: token t may be drawn
  const int64_t* num_logprobs;  // alternatives to report; negative reports nothing
  int32_t* drawn;               // [num_rows], written unless there are targets
  uint8_t* status;              // [num_rows], written
  float* logprob;               // [num_rows], written where num_logprobs >= 0, as what follows
  int32_t* rank;
  int32_t* top_tokens;          // [num_rows, max_logprobs]
  float* top_logprobs;
};

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

// A sampler that computes on the threads of `program`, or without one on threads of its own.
// Returns null if the instruction set's kernels are not loaded.
void* sb_sampler_new(void* program, int32_t num_threads, int32_t isa);
void sb_sampler_free(void* sampler);

// Returns 0, or 1 without memory.
int32_t sb_sampler_run(void* sampler, const SbDraws* draws);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
}
