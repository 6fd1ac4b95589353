"""Engines, at vLLM's module paths."""
