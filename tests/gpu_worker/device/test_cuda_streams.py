"""Events that CUDA is asked for, seen by their arguments; tests/gpu has the real ones."""

from typing import Any

import pytest
import torch

from signalbox_worker.device.cuda_streams import CudaStream


class MadeEvent:
    """Stands in for torch.cuda.Event, with its keywords."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.arguments = {"enable_timing": enable_timing, "blocking": blocking}

    def record(self, stream: object) -> None:
        self.stream = stream


@pytest.mark.parametrize("is_timed", [False, True])
def test_waits_sleep_and_only_events_that_are_read_are_timed(
    monkeypatch: pytest.MonkeyPatch, is_timed: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", MadeEvent)
    stream: Any = object()
    event: Any = CudaStream(stream).record(is_timed=is_timed).event
    assert event.arguments == {"enable_timing": is_timed, "blocking": True}
    assert event.stream is stream
    assert CudaStream(stream).record().event.arguments["enable_timing"] is False  # type: ignore[attr-defined]
