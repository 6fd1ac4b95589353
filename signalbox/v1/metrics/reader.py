"""At the path where vLLM has it; see docs/reference/vllm_python.md."""

from signalbox.llm.metrics import Counter, Gauge, Histogram, Metric, Vector

__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector"]
