"""Counts the LoRA adapters of requests, as vLLM's metric names them."""

import time
from collections.abc import Iterable, Iterator

from signalbox_contract.model import ModelInfo
from signalbox_rpc.metrics.sample import Sample, gauge
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.workers.engine.scheduler import Scheduler


def samples(
    model: ModelInfo | None, admission: AdmissionQueue, schedulers: list[Scheduler]
) -> Iterator[Sample]:
    """Yields the adapters of all requests; nothing if the model has none."""
    if model is None or not model.adapters:
        return
    most = [one.limits.max_adapters or len(model.adapters) for one in schedulers]
    running = (group for one in schedulers for group in one.running + one.swapped)
    yield gauge(
        "lora_requests_info",
        "LoRA adapters of requests that wait and that run; the value is the time, in seconds.",
        time.time(),
        max_lora=str(min(most, default=0)),
        waiting_lora_adapters=_names(admission, model),
        running_lora_adapters=_names(running, model),
    )


def _names(groups: Iterable[SequenceGroup], model: ModelInfo) -> str:
    contents = {group.request.adapter for group in groups}
    return ",".join(sorted({one.name for one in model.adapters if one.sha256 in contents}))
