"""Writes records as recording.proto has them, and the configuration in their header."""

import json
from collections.abc import Callable, Iterable

from signalbox_contract.model import (
    Adapter,
    ModelInfo,
    WorkerCapacity,
    encode_adapter,
    encode_capacity,
    encode_model,
)
from signalbox_contract.structured_output import constraint_codec
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.recording.v1 import recording_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_protos.worker.v1 import worker_pb2
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.insight.recorder import InputRecorder, RouterRecorder, WorkerRecorder
from signalbox_scheduler.queue.grammar_queue import Constraint
from signalbox_scheduler.requests.sequence_ids import sequence_ids
from signalbox_scheduler.service.replay.recording_file import RecordWriter

VERSION = 2
"""Raised when a recorded contract changes so that older recordings mean something else."""


class FileRecorder(InputRecorder):
    """Records everything in a file; see recorder.py."""

    def __init__(self, config: SchedulerConfig, path: str, *, now: float) -> None:
        self._writer = RecordWriter(path)
        self._now = now
        self._num_routers = self._num_workers = 0
        header = pb.RecordHeader(
            version=VERSION, config_json=encode_config(config), next_seq_id=sequence_ids.next
        )
        self.write(pb.Record(now=self._now, header=header))

    @property
    def clock(self) -> Callable[[], float]:
        return lambda: self._now

    def router(self) -> "_FileRouterRecorder":
        self._num_routers += 1
        return _FileRouterRecorder(self, self._num_routers)

    def worker(self) -> "_FileWorkerRecorder":
        self._num_workers += 1
        return _FileWorkerRecorder(self, self._num_workers)

    def tick(self, now: float) -> None:
        self.write(pb.Record(now=now, tick=pb.Tick()))

    def adapters_changed(self, adapters: Iterable[Adapter], now: float) -> None:
        changed = pb.AdaptersChanged(adapters=map(encode_adapter, adapters))
        self.write(pb.Record(now=now, adapters_changed=changed))

    def cache_cleared(self, tenant: str | None, now: float) -> None:
        self.write(pb.Record(now=now, cache_cleared=pb.CacheCleared(tenant=tenant)))

    def write(self, record: pb.Record) -> None:
        """Appends a record and moves the scheduler's clock on to it."""
        self._now = record.now = record.now or self._now
        self._writer.append(record.SerializeToString())

    def close(self) -> None:
        self._writer.close()


class _FileRouterRecorder(RouterRecorder):
    def __init__(self, recorder: FileRecorder, number: int) -> None:
        self._write, self._number = recorder.write, number

    def said(self, message: scheduler_pb2.ConnectRequest, now: float) -> None:
        said = pb.RouterSaid(router=self._number, request=message)
        self._write(pb.Record(now=now, router_said=said))

    def left(self, now: float) -> None:
        self._write(pb.Record(now=now, router_left=pb.RouterLeft(router=self._number)))


class _FileWorkerRecorder(WorkerRecorder):
    def __init__(self, recorder: FileRecorder, number: int) -> None:
        self._write, self._number = recorder.write, number
        self._description = pb.WorkerJoined()
        self._response = worker_pb2.ExecuteModelResponse()

    def describe(
        self,
        *,
        address: str,
        epoch: int,
        model: ModelInfo,
        capacity: WorkerCapacity,
        certified_name: str,
        role: WorkerRole,
    ) -> None:
        self._description = pb.WorkerJoined(
            worker=self._number,
            address=address,
            epoch=epoch,
            model=encode_model(model),
            capacity=encode_capacity(capacity),
            certified_name=certified_name,
            role=role,
        )

    def joined(self, now: float) -> None:
        self._write(pb.Record(now=now, worker_joined=self._description))

    def drains(self, now: float) -> None:
        self._write(pb.Record(now=now, worker_drains=pb.WorkerDrains(worker=self._number)))

    def left(self, now: float) -> None:
        self._write(pb.Record(now=now, worker_left=pb.WorkerLeft(worker=self._number)))

    def planned(self, now: float) -> None:
        self._write(pb.Record(now=now, step_planned=pb.StepPlanned(worker=self._number)))

    def sent(self, message: worker_pb2.ExecuteModelRequest) -> None:
        self._write(pb.Record(step_sent=pb.StepSent(worker=self._number, request=message)))

    def received(self, message: worker_pb2.ExecuteModelResponse) -> None:
        self._response = message

    def answered(self, now: float) -> None:
        answered = pb.StepAnswered(worker=self._number, response=self._response)
        self._write(pb.Record(now=now, step_answered=answered))

    def prepared(self, constraint: Constraint, fault: str, now: float) -> None:
        prepared = pb.GrammarPrepared(worker=self._number, fault=fault)
        constraint_codec.encode(prepared.structured_output, constraint)
        self._write(pb.Record(now=now, grammar_prepared=prepared))


def encode_config(config: SchedulerConfig) -> str:
    """Returns the scheduler's own settings as JSON."""
    return json.dumps(config.own_values())


def decode_config(text: str) -> SchedulerConfig:
    """Returns the configuration. Raises ValueError for one of another version of Signalbox."""
    try:
        values = json.loads(text)
        if unknown := values.keys() ^ SchedulerConfig().own_values().keys():
            raise ValueError(f"{min(unknown)} is not in both")
        return SchedulerConfig(**values)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"the recording was made by another version of Signalbox: its settings differ ({error})"
        ) from None
