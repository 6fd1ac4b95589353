"""At the path where vLLM has it; see docs/reference/vllm_python.md."""

from signalbox.llm.engine_args import ProfilerConfig

__all__ = ["ProfilerConfig"]
