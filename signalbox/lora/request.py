"""At the path where vLLM has it; see docs/reference/vllm_python.md."""

from signalbox.llm import LoRARequest

__all__ = ["LoRARequest"]
