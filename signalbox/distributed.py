"""At the path where vLLM has it; see docs/reference/vllm_python.md."""

import gc

__all__ = ["cleanup_dist_env_and_memory"]


def cleanup_dist_env_and_memory() -> None:
    """Ends the engines that a program has let go of, also those that refer to each other."""
    gc.collect()
