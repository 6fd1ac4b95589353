"""Models, at vLLM's module paths."""
