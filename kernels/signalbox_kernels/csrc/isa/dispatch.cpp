#include "isa/dispatch.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sb {

namespace {

// Returns whether the machine has tiles and the kernel permits their use; asks the kernel once.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool may = [] {
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, bytes = 1u << 25;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((d & (bf16 | tile | bytes)) != (bf16 | tile | bytes)) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return may;
#else
  return false;
#endif
}

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
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  if (isa == SB_AVX512_BF16) return bf16;
  if (isa == SB_AMX) return bf16 && may_use_tiles();
#endif
  return false;
}

}  // namespace

const KernelTable* kernels_for(int32_t isa) {
  if (!machine_has(isa)) return nullptr;
  switch (isa) {
#if defined(SB_HAVE_AMX)
    case SB_AMX: return amx_kernels();
#endif
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

int32_t best_isa(int32_t limit) {
  for (int32_t isa = limit; isa > SB_PORTABLE; --isa)
    if (kernels_for(isa)) return isa;
  return SB_PORTABLE;
}

}  // namespace sb
