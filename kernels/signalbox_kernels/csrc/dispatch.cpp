#include "dispatch.h"

namespace sb {

namespace {

bool machine_has(int32_t isa) {
  if (isa == SB_PORTABLE) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (isa == SB_AVX2) return avx2;
  if (isa == SB_AVX512) return avx512;
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (isa == SB_AVX512_VNNI) return vnni;
  if (isa == SB_AVX512_BF16) return vnni && __builtin_cpu_supports("avx512bf16");
#endif
  return false;
}

}  // namespace

const KernelTable* kernels_for(int32_t isa) {
  if (!machine_has(isa)) return nullptr;
  switch (isa) {
#if defined(SB_HAVE_AVX512_BF16)
    case SB_AVX512_BF16: return avx512_bf16_kernels();
#endif
#if defined(SB_HAVE_AVX512_VNNI)
    case SB_AVX512_VNNI: return avx512_vnni_kernels();
#endif
#if defined(SB_HAVE_AVX512)
    case SB_AVX512: return avx512_kernels();
#endif
#if defined(SB_HAVE_AVX2)
    case SB_AVX2: return avx2_kernels();
#endif
    case SB_PORTABLE: return portable_kernels();
    default: return nullptr;
  }
}

int32_t best_isa() {
  for (int32_t isa = SB_AVX512_BF16; isa > SB_PORTABLE; --isa)
    if (kernels_for(isa)) return isa;
  return SB_PORTABLE;
}

}  // namespace sb
