"""At the path where vLLM has it; see docs/reference/vllm_python.md."""

from signalbox.llm import CompletionOutput, RequestMetrics, RequestOutput

__all__ = ["CompletionOutput", "RequestMetrics", "RequestOutput"]
