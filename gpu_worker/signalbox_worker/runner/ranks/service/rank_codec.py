"""Reads and writes the messages between ranks (rank.proto).

A batch, a section of a step and hidden states, which are of every step, have messages of their own.
All else travels by the name of its class, as JSON by the types of its fields, which are checked.
"""

from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from signalbox_contract.columns import pack_int32, pack_int64, unpack_int32, unpack_int64
from signalbox_contract.model import WorkerCapacity, decode_capacity, encode_capacity
from signalbox_contract.step import Step, decode_step, encode_step
from signalbox_contract.step_result import decode_stages, encode_stages
from signalbox_kernels.structs import StateArrays
from signalbox_protos.rank.v1 import rank_pb2 as pb
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.sampling_rows import (
    NO_LOGPROBS,
    PromptRows,
    SampleRows,
    TokenRuns,
    WantedLogits,
    neutral_filters,
)
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.runner.ranks.service.rank_messages import (
    Command,
    FailedStates,
    Failure,
    Hello,
    PassedStates,
    Report,
)

T = TypeVar("T")

_OWN_MESSAGES = (Batch, Settlement, Step, Hello, WorkerCapacity)
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in get_args(Command | Report) if kind not in _OWN_MESSAGES
}
_NO_TOKENS = np.empty(0, dtype=np.int64)


def encode_command(command: Command) -> pb.JoinResponse:
    match command:
        case Batch():
            return pb.JoinResponse(execute=_batch_message(command))
        case Step():
            return pb.JoinResponse(apply=encode_step(command))
        case Settlement():
            states = _states_message(command.states)
            settled = pb.RankSettlement(rows=pack_int64(command.rows), states=states)
            return pb.JoinResponse(settle=settled)
        case _:
            return pb.JoinResponse(message=_encode(command))


def decode_command(message: pb.JoinResponse) -> Command:
    """Raises ValueError, as all that reads here."""
    command: Command
    match message.WhichOneof("command"):
        case "execute":
            command = _batch(message.execute)
        case "apply":
            command = decode_step(message.apply)
        case "settle":
            rows = unpack_int64(message.settle.rows)
            command = Settlement(rows, _states_of(message.settle.states))
        case _:
            command = _decode(message.message, Command)
    return command


def encode_report(report: Report, *, command: int) -> pb.JoinRequest:
    """Args: command: number of what the report is about."""
    match report:
        case Hello():
            return pb.JoinRequest(hello=pb.RankHello(**report._asdict()), command=command)
        case WorkerCapacity():
            return pb.JoinRequest(capacity=encode_capacity(report), command=command)
        case _:
            return pb.JoinRequest(message=_encode(report), command=command)


def decode_report(message: pb.JoinRequest) -> tuple[int, Report]:
    """Returns the number of the command that it is about, too."""
    report: Report
    match message.WhichOneof("report"):
        case "hello":
            hello = message.hello
            report = Hello(hello.rank, hello.versions, hello.address, hello.pid, hello.told)
        case "capacity":
            report = decode_capacity(message.capacity)
        case _:
            report = _decode(message.message, Report)
    return message.command, report


def encode_fields(value: Any) -> bytes:
    """Writes a command, a report or settings by the types of their fields."""
    kind: Any = type(value)
    return _fields_of(kind).dump_json(value)


def decode_fields(kind: type[T], fields: bytes) -> T:
    """Reads what `encode_fields` has written. Raises ValueError."""
    value: T = _fields_of(cast(Any, kind)).validate_json(fields, strict=True)
    return value


@cache
def _fields_of(kind: Any) -> TypeAdapter[Any]:
    config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    return TypeAdapter(kind, config=None if is_dataclass(kind) else config)


def _encode(value: Any) -> pb.RankMessage:
    """Content of blocks stays outside of JSON, where it would take more bytes and time."""
    data = getattr(value, "data", None)
    fields = encode_fields(value if data is None else value._replace(data=None))
    return pb.RankMessage(name=type(value).__name__, fields=fields, data=data)


def _decode(message: pb.RankMessage, kinds: Any) -> Any:
    kind = _KINDS.get(message.name)
    if kind is None or kind not in get_args(kinds):
        raise ValueError(f"ranks send no {message.name or 'message without a name'} there")
    value = decode_fields(kind, message.fields)
    if not message.HasField("data"):
        return value
    if not hasattr(value, "data"):
        raise ValueError(f"ranks send no content of a block with {message.name}")
    return value._replace(data=message.data)


def encode_states(states: PassedStates | FailedStates) -> pb.PassRequest:
    if isinstance(states, FailedStates):
        failed = pb.RankFailure(**states.failure._asdict())
        return pb.PassRequest(command=states.command, failed=failed)
    return pb.PassRequest(
        command=states.command,
        stages=encode_stages(states.stages),
        hidden_states=states.values.tobytes(),
    )


def decode_states(message: pb.PassRequest, *, num_tokens: int) -> PassedStates | FailedStates:
    """Raises ValueError for another number of bytes than whole rows take."""
    if message.HasField("failed"):
        failure = Failure(message.failed.message, message.failed.out_of_memory)
        return FailedStates(message.command, failure)
    values = np.frombuffer(bytearray(message.hidden_states), dtype=np.uint8)
    stages = decode_stages(message.stages)
    return PassedStates(message.command, values.reshape(num_tokens, -1), stages)


def _batch_message(batch: Batch) -> pb.RankBatch:
    prompt = _NO_TOKENS if batch.prompt_rows is None else batch.prompt_rows.token_index
    rows, suppressed = batch.rows, batch.rows.suppressed
    return pb.RankBatch(
        token_ids=pack_int64(batch.token_ids),
        positions=pack_int64(batch.positions),
        slot_mapping=pack_int64(batch.slot_mapping),
        query_start=pack_int64(batch.query_start),
        context_lens=pack_int64(batch.context_lens),
        block_tables=pack_int32(batch.block_tables),
        drawing_tokens=pack_int64(rows.token_index),
        logit_tokens=pack_int64(np.unique(rows.token_index[rows.reads_logits])),
        suppressed=b"" if suppressed is None else pack_int32(suppressed.token_ids),
        suppressed_ends=b"" if suppressed is None else pack_int32(suppressed.ends),
        prompt_tokens=pack_int64(prompt),
        adapters=b"" if batch.adapters is None else pack_int32(batch.adapters),
        states=None if batch.states is None else _states_message(batch.states),
    )


def _states_message(states: StateArrays) -> pb.RankStates:
    return pb.RankStates(
        first_runs=pack_int32(states.first_runs),
        run_start=pack_int64(states.run_start),
        reads=pack_int32(states.reads),
        writes=pack_int32(states.writes),
    )


def _states_of(message: pb.RankStates) -> StateArrays:
    first_runs, run_start = unpack_int32(message.first_runs), unpack_int64(message.run_start)
    return StateArrays(
        first_runs=first_runs,
        run_start=run_start,
        reads=unpack_int32(message.reads).reshape(len(first_runs) - 1, -1),
        writes=unpack_int32(message.writes).reshape(len(run_start) - 1, -1),
    )


def _batch(message: pb.RankBatch) -> Batch:
    context_lens = unpack_int64(message.context_lens)
    positions = unpack_int64(message.positions).copy()
    slots = unpack_int64(message.slot_mapping).copy()
    if len(slots) > len(positions):
        slots = slots.reshape(len(positions), -1)
    # What is read of the wire is read-only, which Torch's tensors cannot be.
    return Batch(
        token_ids=unpack_int64(message.token_ids).copy(),
        positions=positions,
        slot_mapping=slots,
        query_start=unpack_int64(message.query_start).copy(),
        context_lens=context_lens.copy(),
        block_tables=unpack_int32(message.block_tables).reshape(len(context_lens), -1).copy(),
        rows=_rows_of(unpack_int64(message.drawing_tokens).copy()),
        wanted=_wanted(message),
        prompt_rows=_prompt_rows_of(unpack_int64(message.prompt_tokens).copy()),
        adapters=unpack_int32(message.adapters).copy() if message.adapters else None,
        states=_states_of(message.states) if message.HasField("states") else None,
    )


def _wanted(message: pb.RankBatch) -> WantedLogits:
    suppressed = None
    if message.suppressed:
        ends = unpack_int32(message.suppressed_ends)
        suppressed = TokenRuns(ends, unpack_int32(message.suppressed))
    return WantedLogits(unpack_int64(message.logit_tokens), suppressed)


def _rows_of(tokens: Int64Array) -> SampleRows:
    """Rows that ask for the logits of these tokens, and of which nothing else is known."""
    num_rows = len(tokens)
    nothing = np.zeros(num_rows, dtype=np.int64)
    return SampleRows(
        seq_ids=nothing,
        token_index=tokens,
        branch=nothing,
        position=nothing,
        temperature=np.zeros(num_rows, dtype=np.float32),
        filters=neutral_filters(num_rows),
        seed=np.zeros(num_rows, dtype=np.uint64),
        num_logprobs=np.full(num_rows, NO_LOGPROBS),
    )


def _prompt_rows_of(tokens: Int64Array) -> PromptRows | None:
    """Likewise for tokens whose log probabilities are reported; None if there are none."""
    if not len(tokens):
        return None
    nothing = np.zeros(0, dtype=np.int64)
    return PromptRows(
        seq_index=nothing,
        first_position=nothing,
        lengths=nothing,
        token_index=tokens,
        targets=np.zeros(len(tokens), dtype=np.int32),
        num_logprobs=np.zeros(len(tokens), dtype=np.int64),
    )
