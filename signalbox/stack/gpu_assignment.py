"""Assigns GPUs to the workers of a local stack: one for each process, each GPU to one worker.

CUDA_VISIBLE_DEVICES, which every CUDA program obeys, carries the assignment, so that workers need
not know of each other.
"""

import os
from collections.abc import Mapping, Sequence

from signalbox.stack.machine_info import nvidia_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns CUDA's names of the GPUs that this process may use."""
    listed = environ.get(VISIBLE)
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(index) for index in range(len(nvidia_gpus()))]


def gpu_share(gpus: Sequence[str], *, place: int, num_ranks: int) -> dict[str, str]:
    """Returns variables for the environment of the worker in a place; none if no GPUs are left for
    it."""
    start, end = place * num_ranks, (place + 1) * num_ranks
    return {VISIBLE: ",".join(gpus[start:end])} if end <= len(gpus) else {}
