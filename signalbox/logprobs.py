"""At the path where vLLM has it; see docs/vllm_python.md."""

from signalbox.llm import Logprob

__all__ = ["Logprob"]
