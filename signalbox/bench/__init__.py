"""`signalbox bench`: loads a router, or any OpenAI endpoint, and says how it bore it.

What is measured follows vLLM's `vllm bench serve`; benchmarks/ measures with the same parts.
"""
