"""Replays the golden traces of worker.v1 through the codec and the worker."""

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.message import Message

from signalbox_contract.errors import RpcError
from signalbox_contract.pooling import PoolingModel
from signalbox_contract.step import decode_step
from signalbox_contract.step_result import encode_result
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_worker.lease.step_log import Answer
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.worker import Worker

TRACES = sorted((Path(__file__).parent / "traces").glob("*.yaml"))
CONFIG = SimulatedConfig(
    max_model_len=32,
    block_size=4,
    num_gpu_blocks=8,
    num_cpu_blocks=4,
    max_num_seqs=4,
    max_num_batched_tokens=16,
)
POOLING = PoolingModel(task="embed", num_outputs=2, activation="identity", reads_all_tokens=True)
INT64_COLUMNS = {"seq_ids", "finished_seq_ids", "parent_seq_ids", "child_seq_ids"}

Exchange = dict[str, Any]


class Client:
    """Sends what a trace sends, and compares the answers."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._ahead: list[tuple[Answer, Exchange]] = []

    async def play(self, exchange: Exchange) -> None:
        if "register" in exchange:
            self._worker.begin_epoch(exchange["register"])
        elif "init_cache_engine" in exchange:
            await self._check(self._init(exchange["init_cache_engine"]), exchange)
        else:
            await self._execute(exchange)

    async def _execute(self, exchange: Exchange) -> None:
        request = fill(pb.ExecuteModelRequest(), exchange["execute_model"])
        wire = request.SerializeToString()
        assert pb.ExecuteModelRequest.FromString(wire) == request
        try:
            answer = self._worker.submit(decode_step(request))
        except RpcError as error:
            assert error.code.name == exchange.get("status"), error
            return
        self._ahead.append((answer, exchange))
        if not exchange.get("ahead"):
            for sent, expected in self._ahead:
                await self._check(self._answer(sent), expected)
            self._ahead = []

    async def _init(self, fields: Exchange) -> Message:
        await self._worker.init_cache_engine(**fields)
        return pb.InitCacheEngineResponse()

    async def _answer(self, answer: Answer) -> Message:
        response = encode_result(await asyncio.shield(answer))
        response.ClearField("timings")
        return response

    async def _check(self, answering: Any, exchange: Exchange) -> None:
        try:
            response = await answering
        except RpcError as error:
            assert error.code.name == exchange.get("status"), error
        else:
            assert "response" in exchange, f"{exchange} was not refused"
            assert response == fill(type(response)(), exchange["response"])


def fill(message: Message, fields: Exchange) -> Any:
    """Fills a message from plain values; lists become columns where the field is `bytes`."""
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.type == field.TYPE_BYTES:
            kind = "f" if name == "values" else "q" if name in INT64_COLUMNS else "i"
            setattr(message, name, struct.pack(f"<{len(value)}{kind}", *value))
        elif isinstance(value, dict):
            getattr(message, name).SetInParent()
            fill(getattr(message, name), value)
        elif isinstance(value, list) and field.message_type is not None:
            for element in value:
                fill(getattr(message, name).add(), element)
        elif isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


def read(trace: Path) -> list[Exchange]:
    exchanges: list[Exchange] = yaml.safe_load(trace.read_text())
    return exchanges


async def replay(trace: Path, runner: SimulatedRunner) -> None:
    worker = await Worker.load(lambda: runner)
    client = Client(worker)
    try:
        for exchange in read(trace):
            await client.play(exchange)
    finally:
        worker.close()


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.stem)
async def test_the_worker_answers_as_written(trace: Path) -> None:
    config = replace(CONFIG, pooling=POOLING) if trace.stem == "pooling" else CONFIG
    await replay(trace, SimulatedRunner(config))


def test_the_hard_cases_are_there() -> None:
    assert {trace.stem for trace in TRACES} >= {
        "append",
        "decode",
        "first_schedule",
        "fork_and_copy_on_write",
        "fork_replaces_parent",
        "pooling",
        "resend",
        "resume_by_recompute",
        "swap",
        "worker_lost",
    }


def test_columns_are_little_endian_on_the_wire() -> None:
    request = fill(
        pb.ExecuteModelRequest(),
        {
            "epoch": 7,
            "step_id": 2,
            "finished_seq_ids": [3],
            "running": {"seq_ids": [1, 258], "num_new_tokens": [1, 4]},
        },
    )
    assert request.SerializeToString(deterministic=True).hex(" ") == (
        "09 07 00 00 00 00 00 00 00 "  # epoch
        "10 02 "  # step_id
        "1a 08 03 00 00 00 00 00 00 00 "  # finished_seq_ids
        "2a 1c "  # running
        "0a 10 01 00 00 00 00 00 00 00 02 01 00 00 00 00 00 00 "  # seq_ids
        "12 08 01 00 00 00 04 00 00 00"  # num_new_tokens
    )
