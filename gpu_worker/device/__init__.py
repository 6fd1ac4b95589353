"""What the worker asks of a device: streams, graphs, memory; on CUDA, and on a CPU where it can."""
