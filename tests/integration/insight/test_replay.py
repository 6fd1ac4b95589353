"""A recording of real services under a random load repeats every decision that they made."""

import asyncio
import random
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from signalbox_contract.columns import pack_int32
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.recording.v1 import recording_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import state_pb2
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from signalbox_scheduler.service.replay.recording_codec import VERSION
from signalbox_scheduler.service.replay.replay_codec import NotARecording, Replay
from tests.integration.stack import (
    Router,
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.scheduler_svc.service.replay.record import read_records, write_records
from tests.waiting import eventually

NUM_REQUESTS = 40
BEAMS = pb.BeamSearchParams(width=3, length_penalty=1.0)
GOES_ON = {
    "num_sequences": 2,
    "max_tokens": 9,
    "attempt": 1,
    "delivered": [
        pb.DeliveredSequence(token_ids=pack_int32([1, 2, 3])),
        pb.DeliveredSequence(token_ids=pack_int32([1]), finish_reason=pb.FINISH_REASON_STOP_STRING),
    ],
}


def constrained(number: int) -> common_pb2.SamplingParams:
    """Of seven structured outputs; one of them cannot be compiled."""
    regex = f"[a-z]{{{number},200}}" if number else "("
    return common_pb2.SamplingParams(
        top_p=1.0,
        structured_output=common_pb2.StructuredOutput(regex=regex),
        grammar_cost=common_pb2.GrammarCost(cpu_ns=10**6 * number, peak_bytes=200 << 20),
    )


async def random_load(client: Router, kill: Callable[[], "asyncio.Future[None]"]) -> None:
    """Adds, aborts, stops; some with branches, some with little time; a worker dies half-way."""
    rng = random.Random(5)
    aborted = set()
    for handle in range(NUM_REQUESTS):
        fields = {
            "max_tokens": rng.randrange(1, 40),
            "num_sequences": 1 if handle % 10 == 9 else rng.choice([1, 1, 1, 3]),
            "beam_search": BEAMS if handle % 10 == 9 else None,
            "timeout_ns": rng.choice([10**6, 10**11, 10**11, 10**11]),
            "payer": f"10.0.0.{handle % 4}",
        }
        if handle % 3 == 1 and handle % 10 not in (5, 9):
            fields["sampling_params"] = constrained(handle % 7)
        prompt = [rng.randrange(4) for _ in range(rng.randrange(1, 50))]
        await client.add(handle, prompt, **fields | (GOES_ON if handle % 10 == 5 else {}))
        other = rng.randrange(handle + 1)
        if rng.random() < 0.2:
            await client.abort(other)
            aborted.add(other)
        elif rng.random() < 0.2:
            stop = pb.StopSequence(handle=other, index=0, keep_tokens=0)
            await client.call.write(pb.ConnectRequest(stop_sequence=stop))
        if handle == NUM_REQUESTS // 2:
            await kill()
        await asyncio.sleep(rng.choice([0, 0, 0.002]))
    await client.ended(*(set(range(NUM_REQUESTS)) - aborted))


async def record(path: Path) -> None:
    config = SchedulerConfig(
        port=0,
        recording_path=str(path),
        scheduling_policy="fair",  # so that the steps depend on the payers
        max_num_seqs=8,
        max_num_batched_tokens=48,
        preemption_mode=PreemptionMode.SWAP,  # and recompute, for the swap pool is small
    )
    make = simulated(block_size=8, num_gpu_blocks=26, num_cpu_blocks=12, step_ns=1_000_000)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, make),
        running_worker(scheduler.address, make) as second,
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
        await random_load(client, lambda: asyncio.ensure_future(second.kill()))
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "decisions"
    asyncio.run(record(path))
    return path


def test_replay_reproduces_every_step(recording: Path) -> None:
    replay = Replay(str(recording), checks=True)
    assert replay.run() is None
    kinds = Counter(one.WhichOneof("record") for one in read_records(recording))
    assert replay.num_steps == kinds["step_sent"] > 50
    assert replay.num_left_over == 0
    assert kinds["worker_joined"] == 2
    assert kinds["worker_left"] >= 1
    prepared = [one.grammar_prepared for one in read_records(recording)]
    assert any(one.fault for one in prepared)
    assert sum(one.worker > 0 and not one.fault for one in prepared) > 2
    sent = [one.step_sent.request for one in read_records(recording) if one.HasField("step_sent")]
    assert any(step.block_moves.HasField("swap_out") for step in sent)  # else this proves little
    assert any(step.HasField("forks") for step in sent)


def test_recording_is_for_its_owner_alone(recording: Path) -> None:
    assert stat.S_IMODE(recording.stat().st_mode) == 0o600


def test_a_changed_decision_is_found_and_both_messages_are_readable(
    recording: Path, tmp_path: Path
) -> None:
    changed = read_records(recording)
    steps = [one.step_sent for one in changed if one.HasField("step_sent")]
    index = next(i for i, step in enumerate(steps) if i > 20 and step.request.new_groups)
    steps[index].request.new_groups[0].sequences[0].block_table[0] += 1
    replay = Replay(str(write_records(tmp_path / "changed", changed)))
    difference = replay.run()
    assert difference is not None
    assert difference.num_steps == index + 1
    assert difference.step_id == steps[index].request.step_id
    assert difference.recorded is not None
    assert difference.replayed is not None
    different = [
        pair
        for pair in zip(difference.recorded, difference.replayed, strict=True)
        if pair[0] != pair[1]
    ]
    [(was, now)] = different
    assert "block_table: [" in was
    assert "block_table: [" in now


def test_a_step_that_was_not_sent_and_one_that_was_are_found(
    recording: Path, tmp_path: Path
) -> None:
    changed = read_records(recording)
    at = next(i for i, one in enumerate(changed) if one.HasField("step_sent"))
    removed = Replay(
        str(write_records(tmp_path / "removed", changed[:at] + changed[at + 1 :]))
    ).run()
    assert removed is not None
    assert removed.recorded is None
    assert removed.replayed is not None
    doubled = changed[: at + 1] + changed[at:]
    added = Replay(str(write_records(tmp_path / "added", doubled))).run()
    assert added is not None
    assert added.replayed is None


@pytest.mark.parametrize("missing", [1, 5, 1000])
def test_a_truncated_file_is_replayed_up_to_its_end(
    recording: Path, tmp_path: Path, missing: int
) -> None:
    data = recording.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(data[:-missing])
    replay = Replay(str(cut))
    assert replay.run() is None
    whole = len(read_records(recording))
    assert replay.num_records < whole
    assert replay.num_left_over < missing or missing < 1000


def test_until_a_step_the_state_is_that_of_the_step(recording: Path) -> None:
    replay = Replay(str(recording), until_step=30)
    assert replay.run() is None
    assert replay.num_steps == 30
    state = replay.state()
    workers = [part.worker for part in state if part.HasField("worker")]
    sent = [one.step_sent for one in read_records(recording) if one.HasField("step_sent")][:30]
    newest = {step.worker: step.request.step_id for step in sent}
    assert {worker.inflight[-1].step_id for worker in workers if worker.inflight} <= set(
        newest.values()
    )
    assert isinstance(state[0], state_pb2.DumpStateResponse)
    assert not any(part.request.prompt_token_ids for part in state)
    assert any(part.request.prompt_token_ids for part in replay.state(include_token_ids=True))


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("no recording at all, but text")
    with pytest.raises(NotARecording):
        Replay(str(path)).run()
    for version in (VERSION - 1, VERSION + 1):
        header = recording_pb2.Record(now=1.0, header=recording_pb2.RecordHeader(version=version))
        with pytest.raises(
            NotARecording, match=f"version {version}; this release replays version {VERSION}"
        ):
            Replay(str(write_records(tmp_path / str(version), [header])))


@pytest.mark.parametrize("kind", ["step_answered", "step_planned", "worker_left", "worker_drains"])
def test_a_record_that_cannot_be_is_named(recording: Path, tmp_path: Path, kind: str) -> None:
    changed = read_records(recording)
    at, record = next((i, one) for i, one in enumerate(changed) if one.HasField("step_answered"))
    getattr(record, kind).worker = 999
    if kind == "step_answered":
        record.step_answered.response.step_id = 1 << 40
    with pytest.raises(NotARecording, match=rf"record {at + 1} does not follow .*KeyError: 999"):
        Replay(str(write_records(tmp_path / kind, changed))).run()
