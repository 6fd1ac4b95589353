"""Entry points of programs, at vLLM's module paths."""
