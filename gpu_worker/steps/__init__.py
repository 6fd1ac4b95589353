"""Who computes a batch: a native program, PyTorch, or a device that is not waited for."""
