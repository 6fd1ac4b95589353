"""The parts of the GPU benchmark, in the order in which they run, each with its time limit.

A part's modules are imported when it runs, in a process of its own.
"""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure

_NONE: Mapping[str, Any] = MappingProxyType({})

Measurement = Callable[[Bench], list[Measure]]


class Part(NamedTuple):
    """A function of a module in `benchmarks.gpu.parts`, and the settings that it measures with."""

    module: str
    limit_s: float
    """Seconds on a card, including the start of the process."""
    function: str = "measure"
    settings: Mapping[str, Any] = _NONE
    """Settings of workers, by the names of their fields."""
    environment: Mapping[str, str] = _NONE
    needs_card: bool = False
    """True if a CPU refuses the settings."""

    def measurement(self) -> Measurement:
        module = importlib.import_module(f"benchmarks.gpu.parts.{self.module}")
        function: Measurement = getattr(module, self.function)
        return function


ROOFLINE = "roofline"
"""Part that others are compared with; it runs first in every run."""

PARTS = {
    "probes": Part("probes", 60),
    ROOFLINE: Part("roofline", 40),
    "steps": Part("model_steps", 90),
    "workload": Part("workloads", 100),
    "gap": Part("gap", 90),
    "swap": Part("swapping", 70),
    "attention": Part("attention", 90),
    "transformers": Part("workloads", 100, "measure_beside_transformers"),
    "kernels": Part("kernels", 120),
    "sweep": Part("sweep", 200),
    "stack": Part("stack", 240),
    "steps-eager": Part("model_steps", 90, "measure_beside_plain", {"enforce_eager": True}),
    "steps-plain": Part(
        "model_steps",
        90,
        "measure_beside_plain",
        {"attention_backend": "triton_plain"},
        needs_card=True,
    ),
    "steps-pdl": Part(
        "model_steps",
        90,
        "measure_beside_plain",
        {"attention_backend": "triton_pdl"},
        needs_card=True,
    ),
    "steps-plain-products": Part(
        "model_steps",
        90,
        "measure_beside_plain",
        {"linear_backend": "torch"},
        needs_card=True,
    ),
    "steps-fp8-kv": Part(
        "model_steps", 90, "measure_beside_plain", {"kv_cache_dtype": "fp8"}, needs_card=True
    ),
    "steps-fp8": Part(
        "model_steps", 90, "measure_beside_plain", {"quantization": "fp8"}, needs_card=True
    ),
}
"""A switch has a part like the last: the steps with it, over those of the part `steps`."""

DEFAULT_PARTS = tuple(list(PARTS)[:8])
"""Parts that run if none are named: nine minutes at most."""
