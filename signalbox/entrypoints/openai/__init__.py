"""OpenAI's HTTP API, at vLLM's module path."""
