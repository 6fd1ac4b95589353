"""vLLM's second engine is the only one here; its paths lead to the same classes."""
