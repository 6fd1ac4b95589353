"""At the path where vLLM has it; see docs/reference/vllm_python.md."""

from signalbox.llm import AsyncLLMEngine, EngineDeadError

__all__ = ["AsyncLLMEngine", "EngineDeadError"]
