"""Reads and writes the messages between ranks (rank.proto)."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message
from pydantic import BaseModel

from signalbox_contract.columns import (
    int32_list,
    pack_int32,
    pack_int64,
    unpack_int32,
    unpack_int64,
)
from signalbox_contract.model import WorkerCapacity, decode_capacity, encode_capacity
from signalbox_contract.sections.store_moves import decode_move_result, encode_move_result
from signalbox_contract.step import Step, decode_step, encode_step
from signalbox_contract.step_result import decode_stages, encode_stages
from signalbox_protos.rank.v1 import rank_pb2 as pb
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.sampling_rows import TokenRuns, WantedLogits
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.parallel_config import ParallelConfig
from signalbox_worker.ranks.service.rank_messages import (
    AdapterOpened,
    AddAdapter,
    Ask,
    BlockCopied,
    BlocksOpened,
    CacheReady,
    CloseBlocks,
    Command,
    CopyBlock,
    EndedMoves,
    Failure,
    ForgetAdapter,
    Hello,
    HiddenStates,
    InitCacheEngine,
    InStep,
    Link,
    Loaded,
    LogLine,
    Meet,
    Met,
    OpenAdapter,
    OpenBlocks,
    RankAddress,
    RemoveAdapter,
    RemoveBlock,
    Report,
    Start,
    prompt_rows_of,
    rows_of,
)
from signalbox_worker.store_config import DiskConfig, SharedConfig

M = TypeVar("M", bound=Message)

_NO_TOKENS = np.empty(0, dtype=np.int64)


def encode_command(command: Command) -> pb.JoinResponse:
    match command:
        case Batch():
            return pb.JoinResponse(execute=_batch_message(command))
        case Step():
            return pb.JoinResponse(apply=encode_step(command))
        case InitCacheEngine():
            return pb.JoinResponse(init_cache_engine=pb.RankCache(**command._asdict()))
        case Meet():
            addresses = [pb.RankAddress(**one._asdict()) for one in command.addresses]
            meet = pb.RankMeet(addresses=addresses, measuring=command.measuring)
            return pb.JoinResponse(meet=meet)
        case Start():
            return pb.JoinResponse(start=_start_message(command))
        case Ask.PROFILE:
            return pb.JoinResponse(profile=pb.RankProfile())
        case Ask.SYNC:
            return pb.JoinResponse(sync=pb.RankSync())
        case Ask.ENDED_MOVES:
            return pb.JoinResponse(ended_moves=pb.RankAskMoves())
        case RemoveBlock():
            return pb.JoinResponse(remove_block=pb.RankRemoveBlock(hash=command.key))
        case OpenBlocks():
            cpu_blocks = pack_int32(command.cpu_blocks)
            opening = pb.RankOpenBlocks(number=command.number, cpu_blocks=cpu_blocks)
            return pb.JoinResponse(open_blocks=opening)
        case CloseBlocks():
            return pb.JoinResponse(close_blocks=pb.RankCloseBlocks(**command._asdict()))
        case CopyBlock():
            return pb.JoinResponse(copy_block=pb.RankCopyBlock(**command._asdict()))
        case OpenAdapter():
            return pb.JoinResponse(open_adapter=pb.RankOpenAdapter(**command._asdict()))
        case ForgetAdapter():
            return pb.JoinResponse(forget_adapter=pb.RankForgetAdapter(**command._asdict()))
        case AddAdapter():
            return pb.JoinResponse(add_adapter=pb.RankAddAdapter(**command._asdict()))
        case RemoveAdapter():
            return pb.JoinResponse(remove_adapter=pb.RankRemoveAdapter(**command._asdict()))


def decode_command(message: pb.JoinResponse) -> Command:
    kind = message.WhichOneof("command")
    match kind:
        case "execute":
            return _batch(message.execute)
        case "apply":
            return decode_step(message.apply)
        case "init_cache_engine":
            cache = message.init_cache_engine
            return InitCacheEngine(cache.num_gpu_blocks, cache.num_cpu_blocks)
        case "meet":
            meet = message.meet
            measuring = meet.measuring if meet.HasField("measuring") else None
            return Meet(_addresses(meet.addresses), measuring)
        case "start":
            return _start(message.start)
        case "profile" | "sync" | "ended_moves":
            return Ask(kind)
        case "remove_block":
            return RemoveBlock(message.remove_block.hash)
        case "open_blocks":
            blocks = message.open_blocks
            indices = int32_list(blocks.cpu_blocks, "open_blocks.cpu_blocks")
            return OpenBlocks(blocks.number, tuple(indices))
        case "close_blocks":
            return CloseBlocks(message.close_blocks.number)
        case "copy_block":
            copy = message.copy_block
            data = copy.data if copy.HasField("data") else None
            return CopyBlock(copy.number, copy.place, data)
        case "open_adapter":
            opening = message.open_adapter
            return OpenAdapter(opening.number, opening.name, opening.folder)
        case "forget_adapter":
            return ForgetAdapter(message.forget_adapter.number)
        case "add_adapter":
            return AddAdapter(message.add_adapter.number)
        case "remove_adapter":
            removed = message.remove_adapter
            return RemoveAdapter(removed.name, removed.sha256)
        case _:
            raise ValueError("a command that this rank does not know")


def encode_report(report: Report, *, command: int) -> pb.JoinRequest:
    """Args: command: number of what the report is about."""
    message = _report_message(report)
    message.command = command
    return message


def _report_message(report: Report) -> pb.JoinRequest:
    match report:
        case Hello():
            told = None if report.told is None else _start_message(report.told)
            return pb.JoinRequest(hello=pb.RankHello(**report._asdict() | {"told": told}))
        case Met():
            links = [
                pb.RankLink(rank=a, round_trip_ns=b, bytes_per_second=c) for a, b, c in report.links
            ]
            return pb.JoinRequest(met=pb.RankMet(faults=report.faults, links=links))
        case Loaded():
            return pb.JoinRequest(loaded=pb.RankLoaded(**report._asdict()))
        case CacheReady():
            return pb.JoinRequest(cache_ready=pb.RankCacheReady(**report._asdict()))
        case WorkerCapacity():
            return pb.JoinRequest(capacity=encode_capacity(report))
        case InStep():
            return pb.JoinRequest(in_step=pb.RankInStep(**report._asdict()))
        case EndedMoves():
            results = map(encode_move_result, report.results)
            ended = pb.RankEndedMoves(results=results, is_open=report.is_open)
            return pb.JoinRequest(ended_moves=ended)
        case BlocksOpened():
            return pb.JoinRequest(blocks_opened=pb.RankOpenBlocks(number=report.number))
        case BlockCopied():
            return pb.JoinRequest(block_copied=pb.RankCopiedBlock(**report._asdict()))
        case AdapterOpened():
            return pb.JoinRequest(adapter_opened=pb.RankAdapterOpened(**report._asdict()))
        case Failure():
            return pb.JoinRequest(failed=pb.RankFailure(**report._asdict()))
        case LogLine():
            return pb.JoinRequest(log_line=pb.RankLogLine(**report._asdict()))


def decode_report(message: pb.JoinRequest) -> tuple[int, Report]:
    """Returns the number of the command that it is about, too."""
    return message.command, _report(message)


def _report(message: pb.JoinRequest) -> Report:
    match message.WhichOneof("report"):
        case "hello":
            hello = message.hello
            told = _start(hello.told) if hello.HasField("told") else None
            return Hello(hello.rank, hello.versions, hello.address, hello.pid, told)
        case "met":
            links = (
                Link(one.rank, one.round_trip_ns, one.bytes_per_second) for one in message.met.links
            )
            return Met(tuple(message.met.faults), tuple(links))
        case "loaded":
            loaded = message.loaded
            return Loaded(loaded.fingerprint, loaded.arithmetic, loaded.adapters)
        case "cache_ready":
            return CacheReady(message.cache_ready.num_graphs)
        case "capacity":
            return decode_capacity(message.capacity)
        case "in_step":
            return InStep(message.in_step.num_collectives)
        case "ended_moves":
            ended = message.ended_moves
            return EndedMoves(tuple(map(decode_move_result, ended.results)), ended.is_open)
        case "blocks_opened":
            return BlocksOpened(message.blocks_opened.number)
        case "block_copied":
            copied = message.block_copied
            data = copied.data if copied.HasField("data") else None
            return BlockCopied(copied.number, copied.place, data)
        case "adapter_opened":
            opened = message.adapter_opened
            return AdapterOpened(opened.number, opened.sha256, opened.error)
        case "failed":
            return _failure(message.failed)
        case "log_line":
            line = message.log_line
            return LogLine(line.level, line.logger, line.message)
        case _:
            raise ValueError("a report that rank 0 does not know")


def encode_states(states: HiddenStates) -> pb.PassRequest:
    message = pb.PassRequest(command=states.command, stages=encode_stages(states.stages))
    if states.values is not None:
        message.hidden_states = states.values.tobytes()
    if states.failure is not None:
        message.failed.CopyFrom(pb.RankFailure(**states.failure._asdict()))
    return message


def decode_states(message: pb.PassRequest, *, num_tokens: int) -> HiddenStates:
    """Raises ValueError for another number of bytes than whole rows take."""
    if message.HasField("failed"):
        failure = _failure(message.failed)
        return HiddenStates(message.command, None, failure)
    values = np.frombuffer(bytearray(message.hidden_states), dtype=np.uint8)
    stages = decode_stages(message.stages)
    return HiddenStates(message.command, values.reshape(num_tokens, -1), None, stages)


def _failure(message: pb.RankFailure) -> Failure:
    return Failure(message.message, message.out_of_memory)


def _start_message(start: Start) -> pb.RankStart:
    return pb.RankStart(
        model=_filled(pb.RankModelConfig(), dict(start.model)),
        cache=_filled(pb.RankCacheConfig(), dict(start.cache)),
        device=_filled(pb.RankDeviceConfig(), dict(start.device)),
        disk=_filled(pb.RankDiskConfig(), dict(start.disk)),
        shared=_filled(pb.RankSharedConfig(), dict(start.shared)),
        parallel=_filled(pb.RankParallelConfig(), asdict(start.parallel)),
        addresses=[pb.RankAddress(**one._asdict()) for one in start.addresses],
    )


def _start(message: pb.RankStart) -> Start:
    return Start(
        model=_config(ModelConfig, message.model),
        cache=_config(CacheConfig, message.cache),
        device=_config(DeviceConfig, message.device),
        disk=_config(DiskConfig, message.disk),
        shared=_config(SharedConfig, message.shared),
        parallel=ParallelConfig(**_values(message.parallel)),
        addresses=_addresses(message.addresses),
    )


def _addresses(messages: Iterable[pb.RankAddress]) -> tuple[RankAddress, ...]:
    return tuple(RankAddress(one.address, one.certified_name) for one in messages)


def _filled(message: M, values: dict[str, Any]) -> M:
    """Writes a configuration by field; a field that the message lacks is an error."""
    for name, value in values.items():
        if isinstance(value, tuple):
            getattr(message, name).extend(value)
        elif value is not None:
            setattr(message, name, str(value) if isinstance(value, Path) else value)
    return message


def _values(message: Message) -> dict[str, Any]:
    return {
        field.name: tuple(value) if field.is_repeated else value
        for field, value in message.ListFields()
    }


C = TypeVar("C", bound=BaseModel)


def _config(kind: type[C], message: Message) -> C:
    return kind(**_values(message))


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
        logit_tokens=pack_int64(np.unique(rows.token_index[rows.needs_logits])),
        suppressed=b"" if suppressed is None else pack_int32(suppressed.token_ids),
        suppressed_ends=b"" if suppressed is None else pack_int32(suppressed.ends),
        prompt_tokens=pack_int64(prompt),
        adapters=b"" if batch.adapters is None else pack_int32(batch.adapters),
    )


def _batch(message: pb.RankBatch) -> Batch:
    context_lens = unpack_int64(message.context_lens)
    # What is read of the wire is read-only, which Torch's tensors cannot be.
    return Batch(
        token_ids=unpack_int64(message.token_ids).copy(),
        positions=unpack_int64(message.positions).copy(),
        slot_mapping=unpack_int64(message.slot_mapping).copy(),
        query_start=unpack_int64(message.query_start).copy(),
        context_lens=context_lens.copy(),
        block_tables=unpack_int32(message.block_tables).reshape(len(context_lens), -1).copy(),
        rows=rows_of(unpack_int64(message.drawing_tokens).copy()),
        wanted=_wanted(message),
        prompt_rows=prompt_rows_of(unpack_int64(message.prompt_tokens).copy()),
        adapters=unpack_int32(message.adapters).copy() if message.adapters else None,
    )


def _wanted(message: pb.RankBatch) -> WantedLogits:
    suppressed = None
    if message.suppressed:
        ends = unpack_int32(message.suppressed_ends)
        suppressed = TokenRuns(ends, unpack_int32(message.suppressed))
    return WantedLogits(unpack_int64(message.logit_tokens), suppressed)
