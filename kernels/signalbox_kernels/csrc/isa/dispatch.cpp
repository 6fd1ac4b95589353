// Reads the processor's own registers on x86-64: the compiler's __builtin_cpu_supports needs a table that only
// some C libraries fill, and is false throughout in a library that is linked without one.

#include "isa/dispatch.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace sb {

namespace {

std::atomic<const KernelTable*> tables[SB_NUM_ISAS];

#if defined(__x86_64__)

// What CPUID and XGETBV report; a leaf that the processor lacks is zeros.
struct Features {
  struct Leaf {
    unsigned a = 0, b = 0, c = 0, d = 0;
  };

  Leaf one, seven, seven_one;
  uint64_t saved = 0;  // XCR0: the registers that the system saves

  Features() {
    read(1, 0, one);
    read(7, 0, seven);
    if (seven.a >= 1) read(7, 1, seven_one);
    constexpr unsigned has_xgetbv = 1u << 27;
    if (!(one.c & has_xgetbv)) return;
    unsigned low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    saved = static_cast<uint64_t>(high) << 32 | low;
  }

  static void read(unsigned leaf, unsigned part, Leaf& to) {
    __get_cpuid_count(leaf, part, &to.a, &to.b, &to.c, &to.d);
  }
};

const Features& features() {
  static const Features read;
  return read;
}

constexpr bool has(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

constexpr unsigned bit(int i) { return 1u << i; }

// The kernel gives tiles to a process that asks for them; asks once.
bool may_use_tiles() {
#if defined(__linux__)
  static const bool may = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return may;
#else
  return false;
#endif
}

bool has_avx2(const Features& f) {
  const unsigned avx = bit(28), fma = bit(12), half_precision = bit(29);
  return has(f.saved, 0x6) && has(f.one.c, avx | fma | half_precision) && has(f.seven.b, bit(5));
}

bool has_avx2_vnni(const Features& f) { return has_avx2(f) && has(f.seven_one.a, bit(4)); }

bool has_avx512(const Features& f) {
  const unsigned foundation = bit(16), doubles = bit(17), bytes = bit(30), short_vectors = bit(31);
  return has_avx2(f) && has(f.saved, 0xe6) &&
         has(f.seven.b, foundation | doubles | bytes | short_vectors);
}

bool has_avx512_vnni(const Features& f) { return has_avx512(f) && has(f.seven.c, bit(11)); }

bool has_avx512_bf16(const Features& f) { return has_avx512_vnni(f) && has(f.seven_one.a, bit(5)); }

bool has_amx(const Features& f) {
  const unsigned bf16 = bit(22), tile = bit(24), bytes = bit(25);
  constexpr uint64_t tile_registers = 0x60000;
  return has_avx512_bf16(f) && has(f.saved, tile_registers) &&
         has(f.seven.d, bf16 | tile | bytes) && may_use_tiles();
}

bool machine_has(int32_t isa) {
  const Features& f = features();
  switch (isa) {
    case SB_AVX2: return has_avx2(f);
    case SB_AVX2_VNNI: return has_avx2_vnni(f);
    case SB_AVX512: return has_avx512(f);
    case SB_AVX512_VNNI: return has_avx512_vnni(f);
    case SB_AVX512_BF16: return has_avx512_bf16(f);
    case SB_AMX: return has_amx(f);
    default: return false;
  }
}

#elif defined(__aarch64__) && defined(__linux__)

bool machine_has(int32_t isa) {
  const bool has_dot_products = getauxval(AT_HWCAP) & 1u << 20;  // HWCAP_ASIMDDP
  const bool has_i8mm = getauxval(AT_HWCAP2) & 1u << 13;         // HWCAP2_I8MM
  return has_dot_products && (isa == SB_NEON_DOTPROD || (isa == SB_NEON_I8MM && has_i8mm));
}

#else

bool machine_has(int32_t) { return false; }

#endif

}  // namespace

const KernelTable* kernels_for(int32_t isa) {
  return isa < 0 || isa >= SB_NUM_ISAS ? nullptr : tables[isa].load();
}

}  // namespace sb

extern "C" int32_t sb_machine_has(int32_t isa) {
  return isa == SB_PORTABLE || sb::machine_has(isa);
}

extern "C" void sb_use_kernels(int32_t isa, const void* table) {
  sb::tables[isa].store(static_cast<const sb::KernelTable*>(table));
}
