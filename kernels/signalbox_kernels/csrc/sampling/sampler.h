// Draws for a batch of rows, a row a tile, on the threads of a program or on its own.
#pragma once

#include <memory>
#include <vector>

#include "program/program.h"
#include "sampling/sampling_api.h"

namespace sb {

class Sampler final : public Pool::Work {
 public:
  // `shared` outlives the sampler, or is null; it has num_threads threads.
  Sampler(Pool* shared, int32_t num_threads, const KernelTable& kernels);

  bool run(const SbDraws& draws);
  bool tile(int32_t phase, int32_t tile, int32_t thread, Stretch& ahead) override;
  int32_t overdue(int32_t, int32_t) override { return -1; }

 private:
  const KernelTable& kernels_;
  std::vector<Memory> scratch_;
  const SbDraws* draws_ = nullptr;
  std::unique_ptr<Pool> own_;
  Pool& pool_;
};

}  // namespace sb
