"""Times work on a device, for trials; a CPU has no clock, because there is nothing to choose."""

from collections.abc import Callable
from statistics import median

import torch

from signalbox_worker.device.graphs import NotCapturable

Clock = Callable[[Callable[[], None]], float]
"""Returns the seconds that a call takes on the device."""

_NUM_RUNS = 10


def clock_of(device: torch.device) -> Clock | None:
    """Returns the clock of a device, if it has one."""
    return _seconds_on_cuda if device.type == "cuda" else None


def _seconds_on_cuda(work: Callable[[], None]) -> float:
    """Returns the median of some runs, from a graph if the work can be recorded: as it is served.

    Without one, launches from Python are in the time, as they are in service.
    """
    from signalbox_worker.device.cuda_graphs import CudaGraphs

    device = torch.device("cuda", torch.cuda.current_device())
    try:
        run = CudaGraphs(device).capture(work).replay
    except NotCapturable:
        run = work
    run()
    events = [(_event(), _event()) for _ in range(_NUM_RUNS)]
    for start, end in events:  # without waits between, so that the device never waits for a launch
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return median(float(start.elapsed_time(end)) for start, end in events) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
