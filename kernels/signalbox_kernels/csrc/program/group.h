// Tensor-parallel ranks of one machine, processes or threads, that exchange rows through memory which all
// of them map.
//
// A rank writes to its slot, joins the exchange, and reads the slots of all when every rank has joined.
// There are two slots for each rank, taken in turn: a rank joins an exchange only after it has read those
// of the one before, so none writes to a slot that another one still reads. A waiting rank spins for some
// microseconds, as a thread of a pool does, and then sleeps, since the rank that it waits for may need its
// core.
#pragma once

#include <atomic>
#include <cstdint>

#include "program/spin.h"

namespace sb {

class Group {
 public:
  // `memory` is `bytes(num_ranks, slot_bytes)` long, on a page's boundary, and zero before the first rank
  // uses it.
  Group(void* memory, int32_t rank, int32_t num_ranks, int64_t slot_bytes);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  static int64_t bytes(int32_t num_ranks, int64_t slot_bytes);

  int32_t rank() const { return rank_; }
  int32_t num_ranks() const { return num_ranks_; }
  int64_t slot_bytes() const { return slot_bytes_; }

  // The number of exchanges that this rank has joined, modulo 2^32; the next one is joined + 1.
  uint32_t joined() const;

  // The nanoseconds that this rank has waited for others.
  int64_t waited_ns() const { return waited_ns_; }

  // The slot of a rank in an exchange; that of the next rank follows after slot_bytes().
  char* slot(uint32_t exchange, int32_t rank) const;

  // Joins an exchange and waits for the others, on any number of threads, each of which fetches what it
  // reads next. Returns false if the ranks were called off.
  bool join(uint32_t exchange, Stretch ahead = {});

  // Makes all ranks that wait, or will wait, stop; safe from any thread.
  void call_off();

 private:
  struct alignas(64) Word {
    std::atomic<uint32_t> value;
  };

  bool is_behind(int32_t rank, uint32_t exchange) const;
  bool wait_for(int32_t rank, uint32_t exchange, Stretch& ahead);
  bool is_called_off() const { return called_off_->value.load(); }

  const int32_t rank_, num_ranks_;
  const int64_t slot_bytes_;
  int64_t waited_ns_ = 0;  // written by one thread in each exchange
  Word* const called_off_;
  Word* const sleepers_;
  Word* const joined_;  // [num_ranks]
  char* const slots_;   // [2, num_ranks, slot_bytes]
};

}  // namespace sb
