"""Reads and writes the messages between ranks (rank.proto)."""

import json
from dataclasses import asdict

import numpy as np

from contract.columns import pack_int32, pack_int64, unpack_int32, unpack_int64
from contract.model import WorkerCapacity, decode_capacity, encode_capacity
from contract.step import Step, decode_step, encode_step
from gpu_worker.batch.batch import Batch
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig
from gpu_worker.ranks.rank_messages import (
    Ask,
    CacheReady,
    Command,
    Done,
    Failure,
    InitCacheEngine,
    InStep,
    LogLine,
    Report,
    Start,
    prompt_rows_of,
    rows_of,
)
from protos.worker.v1 import rank_pb2 as pb

_NO_TOKENS = np.empty(0, dtype=np.int64)


def encode_command(command: Command) -> bytes:
    return _command(command).SerializeToString()


def _command(command: Command) -> pb.RankCommand:
    match command:
        case Batch():
            return pb.RankCommand(execute=_batch_message(command))
        case Step():
            return pb.RankCommand(apply=encode_step(command))
        case InitCacheEngine(num_gpu_blocks, num_cpu_blocks):
            cache = pb.RankCache(num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks)
            return pb.RankCommand(init_cache_engine=cache)
        case Start():
            return pb.RankCommand(start=_start_message(command))
        case Ask.PROFILE:
            return pb.RankCommand(profile=pb.RankProfile())
        case Ask.SYNC:
            return pb.RankCommand(sync=pb.RankSync())


def decode_command(data: bytes) -> Command:
    message = pb.RankCommand.FromString(data)
    kind = message.WhichOneof("command")
    match kind:
        case "execute":
            return _batch(message.execute)
        case "apply":
            return decode_step(message.apply)
        case "init_cache_engine":
            cache = message.init_cache_engine
            return InitCacheEngine(cache.num_gpu_blocks, cache.num_cpu_blocks)
        case "start":
            return _start(message.start)
        case "profile" | "sync":
            return Ask(kind)
        case _:
            raise ValueError("a command that this rank does not know")


def encode_report(report: Report, *, command: int) -> bytes:
    """Args: command: number of what the report is about."""
    message = _report_message(report)
    message.command = command
    return message.SerializeToString()


def _report_message(report: Report) -> pb.RankReport:
    match report:
        case Done.JOINING:
            return pb.RankReport(joining=pb.RankJoining())
        case Done.LOADED:
            return pb.RankReport(loaded=pb.RankLoaded())
        case CacheReady():
            return pb.RankReport(cache_ready=pb.RankCacheReady(**report._asdict()))
        case WorkerCapacity():
            return pb.RankReport(capacity=encode_capacity(report))
        case InStep():
            return pb.RankReport(in_step=pb.RankInStep(**report._asdict()))
        case Failure():
            return pb.RankReport(failed=pb.RankFailure(**report._asdict()))
        case LogLine():
            return pb.RankReport(log_line=pb.RankLogLine(**report._asdict()))


def decode_report(data: bytes) -> tuple[int, Report]:
    """Returns the number of the command that it is about, too."""
    message = pb.RankReport.FromString(data)
    return message.command, _report(message)


def _report(message: pb.RankReport) -> Report:
    kind = message.WhichOneof("report")
    match kind:
        case "joining" | "loaded":
            return Done(kind)
        case "cache_ready":
            return CacheReady(message.cache_ready.num_graphs)
        case "capacity":
            return decode_capacity(message.capacity)
        case "in_step":
            return InStep(message.in_step.num_collectives)
        case "failed":
            failed = message.failed
            return Failure(failed.message, failed.out_of_memory)
        case "log_line":
            line = message.log_line
            return LogLine(line.level, line.logger, line.message)
        case _:
            raise ValueError("a report that rank 0 does not know")


def _start_message(start: Start) -> pb.RankStart:
    return pb.RankStart(
        model_config_json=start.model.model_dump_json(),
        cache_config_json=start.cache.model_dump_json(),
        parallel_config_json=json.dumps(asdict(start.parallel)),
        device_config_json=start.device.model_dump_json(),
    )


def _start(message: pb.RankStart) -> Start:
    return Start(
        model=ModelConfig.model_validate_json(message.model_config_json),
        cache=CacheConfig.model_validate_json(message.cache_config_json),
        parallel=ParallelConfig(**json.loads(message.parallel_config_json)),
        device=DeviceConfig.model_validate_json(message.device_config_json),
    )


def _batch_message(batch: Batch) -> pb.RankBatch:
    prompt = _NO_TOKENS if batch.prompt_rows is None else batch.prompt_rows.token_index
    return pb.RankBatch(
        token_ids=pack_int64(batch.token_ids),
        positions=pack_int64(batch.positions),
        slot_mapping=pack_int64(batch.slot_mapping),
        query_start=pack_int64(batch.query_start),
        context_lens=pack_int64(batch.context_lens),
        block_tables=pack_int32(batch.block_tables),
        drawing_tokens=pack_int64(batch.rows.token_index),
        prompt_tokens=pack_int64(prompt),
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
        prompt_rows=prompt_rows_of(unpack_int64(message.prompt_tokens).copy()),
    )
