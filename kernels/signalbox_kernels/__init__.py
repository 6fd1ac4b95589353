"""The ops of a model step: contracts in `ops`, dispatched by device; native programs for a CPU.

`torch/` has what every implementation must equal, `triton/` the kernels for CUDA, `csrc/` those for
a CPU, which the modules beside this one build and call without PyTorch. The package imports nothing
of the others.
"""
