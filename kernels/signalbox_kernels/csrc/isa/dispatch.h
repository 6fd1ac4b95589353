// The instruction sets, those that this machine has, and the kernels that were loaded for them.
#pragma once

#include "program/step.h"

extern "C" {

// In ascending order of speed within an architecture; Python's Isa has the same numbers.
enum SbIsa : int32_t {
  SB_PORTABLE = 0,
  SB_AVX2 = 1,
  SB_AVX2_VNNI = 2,  // AVX-VNNI: the byte products of AVX-512 VNNI in 256 bits
  SB_AVX512 = 3,
  SB_AVX512_VNNI = 4,
  SB_AVX512_BF16 = 5,  // with VNNI
  SB_AMX = 6,          // for bfloat16 and bytes, with all AVX-512 sets
  SB_NEON_DOTPROD = 7,
  SB_NEON_I8MM = 8,  // products of unsigned by signed bytes
};
#define SB_NUM_ISAS 9

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

// Returns whether the processor has an instruction set and the system keeps its registers.
int32_t sb_machine_has(int32_t isa);

// Takes the table of a set's library, for all later programs and samplers; see sb_kernel_table.
void sb_use_kernels(int32_t isa, const void* table);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
}

namespace sb {

// Returns null for a set whose kernels were not loaded.
const KernelTable* kernels_for(int32_t isa);

}  // namespace sb
