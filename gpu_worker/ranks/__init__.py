"""Tensor parallelism within a node: several processes, each with a share of the model, one worker.

Rank 0 is the worker: it has the scheduler, the sequences and the sampler. The others hold their
share of weights and KV and obey rank 0.
"""
