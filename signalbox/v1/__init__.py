"""vLLM's second engine is the only one here; its paths contain the same classes."""
