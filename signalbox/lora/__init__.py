"""vLLM's module path; see docs/reference/vllm_python.md."""
