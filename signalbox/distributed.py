"""At the path where vLLM has it; see docs/reference/vllm_python.md."""

import gc

__all__ = ["cleanup_dist_env_and_memory"]


def cleanup_dist_env_and_memory() -> None:
    """Ends the engines to which a program no longer refers, cycles of references included."""
    gc.collect()
