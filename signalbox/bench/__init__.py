"""`signalbox bench`: puts load on a router, or any OpenAI endpoint, and measures its answers.

The measurements follow vLLM's `vllm bench serve`; benchmarks/ uses the same parts.
"""
