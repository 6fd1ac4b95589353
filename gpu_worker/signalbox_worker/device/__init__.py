"""Interfaces to a device: streams, graphs, memory; for CUDA, and for a CPU as far as possible."""
