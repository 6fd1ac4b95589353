"""Which GPUs each worker of a local stack gets: as many as it has ranks, and none twice.

Said in CUDA_VISIBLE_DEVICES, which every CUDA program obeys, so that no worker need know of others.
"""

import os
from collections.abc import Mapping, Sequence

from signalbox.machine import nvidia_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns how CUDA calls the GPUs that this process may use."""
    listed = environ.get(VISIBLE)
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(index) for index in range(len(nvidia_gpus()))]


def gpu_shares(gpus: Sequence[str], *, num_workers: int, num_ranks: int) -> list[dict[str, str]]:
    """Returns what each worker's environment says; nothing if there are too few for all."""
    if num_workers == 1 or len(gpus) < num_workers * num_ranks:
        return [{}] * num_workers
    starts = range(0, num_workers * num_ranks, num_ranks)
    return [{VISIBLE: ",".join(gpus[start : start + num_ranks])} for start in starts]
