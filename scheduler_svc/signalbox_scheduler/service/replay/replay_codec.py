"""Replays a recording: decodes its records, encodes what is planned again, and compares the two."""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from signalbox_contract.columns import unpack_int32, unpack_int64
from signalbox_contract.errors import RpcError
from signalbox_contract.model import decode_adapter, decode_capacity, decode_model
from signalbox_contract.step import encode_step
from signalbox_contract.step_result import decode_result
from signalbox_contract.structured_output import constraint_codec
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.recording.v1 import recording_pb2 as pb
from signalbox_protos.scheduler.v1 import state_pb2
from signalbox_protos.worker.v1 import worker_pb2
from signalbox_scheduler.service.replay.recording_codec import VERSION, decode_config
from signalbox_scheduler.service.replay.recording_file import RecordReader
from signalbox_scheduler.service.replay.replayed_cluster import ReplayedCluster
from signalbox_scheduler.service.reports import state_codec
from signalbox_scheduler.service.scheduler_servicer import apply_message
from signalbox_scheduler.workers.cluster import Cluster

INT64_COLUMNS = ("seq_ids", "finished_seq_ids", "parent_seq_ids", "child_seq_ids")

FLOAT_COLUMNS = ("logit_biases",)


class NotARecording(ValueError):
    """The file cannot be replayed; says why in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDifference:
    """The first step that was not planned as it is on record. A message of None was not sent."""

    num_steps: int
    """Steps up to this one, of all workers."""
    step_id: int
    worker: str
    recorded: list[str] | None
    replayed: list[str] | None


class Replay:
    """One run over a recording.

    Args:
        until_step: stop when so many steps of all workers have been planned.
        checks: assert the scheduler's invariants after every record.
    """

    def __init__(self, path: str, *, until_step: int | None = None, checks: bool = False) -> None:
        self._reader = RecordReader(path)
        self._until_step = until_step
        self._checks = checks
        self._planned: worker_pb2.ExecuteModelRequest | None = None  # not compared yet
        self._planned_by = 0
        self.num_steps = 0
        self.num_records = 0
        self.difference: PlanDifference | None = None
        records = self._records()
        self._replayed = _begin(next(records, None), path)
        self.began_at = self._replayed.clock.now
        """Seconds of the recorded clock."""
        self._rest = records

    @property
    def num_left_over(self) -> int:
        """Bytes of a last record that was cut off."""
        return self._reader.num_left_over

    def ends_at(self) -> float:
        """Returns the time of the last record. Raises NotARecording if it cannot be read."""
        (last,) = deque(self._reader, maxlen=1)
        try:
            return pb.Record.FromString(last).now
        except DecodeError:
            raise NotARecording("the last record cannot be read; the file is damaged") from None

    @property
    def cluster(self) -> Cluster:
        """The cluster in the state that the replay has reached."""
        return self._replayed.cluster

    @property
    def num_explained(self) -> int:
        """Requests that have ended and can be explained."""
        return self._replayed.config.explain_history

    def run(self) -> PlanDifference | None:
        """Replays up to the end, the first difference or `until_step`."""
        for _ in self.moments():
            pass
        return self.difference

    def moments(self) -> Iterator[float]:
        """Yields the time of each record when it is about to be replayed, as `run` does it."""
        for record in self._rest:
            if self._planned is not None and record.WhichOneof("record") != "step_sent":
                self._differ(recorded=None, replayed=self._planned)
            else:
                yield record.now
                self._replayed.clock.now = record.now
                self._try(record)
            if self.difference is not None or self.num_steps == self._until_step:
                break
            if self._checks and self._planned is None:
                self._replayed.cluster.check()

    def state(self, *, include_token_ids: bool = False) -> list[state_pb2.DumpStateResponse]:
        """Returns the state that the replay has reached."""
        return state_codec.state(
            self._replayed.cluster,
            self._replayed.config,
            now=self._replayed.clock.now,
            include_token_ids=include_token_ids,
        )

    def _records(self) -> Iterator[pb.Record]:
        for data in self._reader:
            self.num_records += 1
            try:
                yield pb.Record.FromString(data)
            except DecodeError:
                raise NotARecording(f"record {self.num_records} cannot be read") from None

    def _try(self, record: pb.Record) -> None:
        """Raises NotARecording for what cannot happen, such as a step of a worker that is gone."""
        try:
            self._apply(record)
        except NotARecording:
            raise
        except Exception as error:  # whatever comes of a damaged number
            raise NotARecording(
                f"record {self.num_records} does not follow from those before it"
                f" ({type(error).__name__}: {error}); the file is damaged, or the scheduler failed"
            ) from error

    def _apply(self, record: pb.Record) -> None:
        replayed, kind = self._replayed, record.WhichOneof("record")
        match kind:
            case "router_said":
                with contextlib.suppress(RpcError):  # it ended the router's stream; that follows
                    router = replayed.router(record.router_said.router)
                    apply_message(record.router_said.request, router, record.now)
            case "router_left":
                replayed.router(record.router_left.router).abort_all()
            case "worker_joined":
                _join(replayed, record.worker_joined)
            case "worker_drains":
                replayed.drain(record.worker_drains.worker)
            case "worker_left":
                replayed.leave(record.worker_left.worker)
            case "step_planned":
                self._plan(record.step_planned.worker)
            case "step_sent":
                self._compare(record.step_sent)
            case "step_answered":
                answered = record.step_answered
                loop = replayed.workers[answered.worker].loop
                loop.complete(decode_result(answered.response), replayed.clock.now)
            case "grammar_prepared":
                prepared = record.grammar_prepared
                constraint = constraint_codec.decode(prepared.structured_output)
                replayed.prepared(prepared.worker, constraint, fault=prepared.fault)
            case "adapters_changed":
                adapters = map(decode_adapter, record.adapters_changed.adapters)
                replayed.cluster.change_adapters(adapters)
            case "cache_cleared":
                cleared = record.cache_cleared
                tenant = cleared.tenant if cleared.HasField("tenant") else None
                replayed.cluster.clear_prefix_cache(tenant, lambda *_: None)
            case "tick":
                replayed.cluster.requests.expire()
            case _:
                raise NotARecording(f"record {self.num_records} is of a kind that is not known")

    def _plan(self, number: int) -> None:
        worker = self._replayed.workers[number]
        if (plan := worker.loop.fill(self._replayed.clock.now)) is not None:
            self._planned = decision(encode_step(plan.to_step(epoch=worker.epoch)))
            self._planned_by = number

    def _compare(self, sent: pb.StepSent) -> None:
        planned, self._planned = self._planned, None
        self.num_steps += 1
        recorded = decision(sent.request)
        if planned != recorded:
            self._planned_by = sent.worker
            self._differ(recorded=recorded, replayed=planned)

    def _differ(
        self,
        *,
        recorded: worker_pb2.ExecuteModelRequest | None,
        replayed: worker_pb2.ExecuteModelRequest | None,
    ) -> None:
        present = recorded or replayed
        worker = self._replayed.workers[self._planned_by]
        self.difference = PlanDifference(
            num_steps=self.num_steps + (recorded is None),
            step_id=present.step_id if present else 0,
            worker=f"{self._planned_by} ({worker.loop.worker_name})",
            recorded=None if recorded is None else readable(recorded),
            replayed=None if replayed is None else readable(replayed),
        )


def _begin(record: pb.Record | None, path: str) -> ReplayedCluster:
    if record is None or record.WhichOneof("record") != "header":
        raise NotARecording(f"{path} is not a recording of a scheduler")
    header = record.header
    if header.version != VERSION:
        raise NotARecording(
            f"{path} is a recording of version {header.version};"
            f" this release replays version {VERSION}"
        )
    config = decode_config(header.config_json)
    return ReplayedCluster(config, next_seq_id=header.next_seq_id, now=record.now)


def _join(replayed: ReplayedCluster, joined: pb.WorkerJoined) -> None:
    replayed.join(
        joined.worker,
        address=joined.address,
        epoch=joined.epoch,
        model=decode_model(joined.model),
        capacity=decode_capacity(joined.capacity),
        certified_name=joined.certified_name,
        role=WorkerRole(joined.role or WorkerRole.BOTH),
    )


def decision(request: worker_pb2.ExecuteModelRequest) -> worker_pb2.ExecuteModelRequest:
    """Returns a step without its trace, because a replay belongs to none, and without the random
    bytes of the scheduler's process."""
    decision = worker_pb2.ExecuteModelRequest()
    decision.CopyFrom(request)
    decision.ClearField("trace_context")
    for clear in decision.store_moves.clears:
        if clear.HasField("mark"):
            clear.mark.ClearField("issuer")
    return decision


def readable(message: Message, indent: str = "") -> list[str]:
    """Returns a message as lines for people: columns as lists of numbers, nothing that is unset."""
    lines = []
    for entry, value in message.ListFields():
        values = value if entry.is_repeated else [value]
        if entry.type != FieldDescriptor.TYPE_MESSAGE:
            lines.append(f"{indent}{entry.name}: {_in_numbers(entry.name, value)}")
            continue
        for one in values:
            lines += [f"{indent}{entry.name}:", *readable(one, indent + "  ")]
    return lines


def _in_numbers(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        if name in FLOAT_COLUMNS:
            return str(np.frombuffer(value, dtype="<f4").tolist())
        unpack = unpack_int64 if name in INT64_COLUMNS else unpack_int32
        return str(unpack(value).tolist())
    return str(value)
