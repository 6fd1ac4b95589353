#include "sampling/sampler.h"

#include <exception>

#include "isa/dispatch.h"

namespace sb {

Sampler::Sampler(Pool* shared, int32_t num_threads, const KernelTable& kernels)
    : kernels_(kernels),
      scratch_(static_cast<size_t>(num_threads)),
      own_(shared ? nullptr : std::make_unique<Pool>(num_threads, 1, kernels.rest)),
      pool_(shared ? *shared : *own_) {}

bool Sampler::run(const SbDraws& draws) {
  const int64_t padded = round_up(draws.vocab_size, 64);
  for (Memory& scratch : scratch_)  // zeroed, and the counts in it are left so
    if (!scratch.reserve(3 * 4 * padded)) return false;
  draws_ = &draws;
  pool_.run(*this, {draws.num_rows});
  return true;
}

bool Sampler::tile(int32_t, int32_t tile, int32_t thread, Stretch&) {
  kernels_.draw(*draws_, tile, scratch_[static_cast<size_t>(thread)].data());
  return true;
}

}  // namespace sb

extern "C" void* sb_sampler_new(void* program, int32_t num_threads, int32_t isa) {
  const sb::KernelTable* kernels = sb::kernels_for(isa);
  if (!kernels || num_threads < 1) return nullptr;
  try {
    auto* owner = static_cast<sb::Program*>(program);
    if (owner) return new sb::Sampler(&owner->pool(), owner->num_threads(), *kernels);
    return new sb::Sampler(nullptr, num_threads, *kernels);
  } catch (const std::exception&) {
    return nullptr;
  }
}

extern "C" void sb_sampler_free(void* sampler) { delete static_cast<sb::Sampler*>(sampler); }

extern "C" int32_t sb_sampler_run(void* sampler, const SbDraws* draws) {
  try {
    return static_cast<sb::Sampler*>(sampler)->run(*draws) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}
