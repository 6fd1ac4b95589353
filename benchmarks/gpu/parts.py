"""The parts of the GPU benchmark, in the order in which they run, each with its time limit."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.gpu import attention, gap, model_steps, probes, roofline, swapping, workloads
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure


class Part(NamedTuple):
    measure: Callable[[Bench], list[Measure]]
    limit_s: float
    """Seconds on a card, including the start of the process."""


PARTS = {
    "probes": Part(probes.measure, 60),
    "roofline": Part(roofline.measure, 40),
    "steps": Part(model_steps.measure, 90),
    "workload": Part(workloads.measure, 100),
    "gap": Part(gap.measure, 90),
    "swap": Part(swapping.measure, 70),
    "attention": Part(attention.measure, 50),
    "transformers": Part(workloads.measure_beside_transformers, 100),
}
