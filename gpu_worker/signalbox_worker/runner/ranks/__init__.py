"""One worker of several ranks: pipeline stages, each of which may be a tensor-parallel group.

Rank 0 is the worker: it has the scheduler, the sequences and the sampler, and therefore the last
layers. The others hold their shard of weights and KV and obey rank 0.
"""
