"""The console's picture of a scheduler is the scheduler's, frame by frame."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import signalbox_router
from signalbox_contract.cache_groups import NO_BLOCK, decode_group, describe_groups
from signalbox_protos.scheduler.v1 import watch_pb2 as pb
from signalbox_router.apis.connect import json_codec
from signalbox_scheduler.service.replay.replay_codec import Replay
from signalbox_scheduler.service.replay.replayed_frames import ReplayedFrames
from tests.router.console.test_chat_modules import node
from tests.scheduler_svc.service.replay.record import unpack
from tests.scheduler_svc.watching import Shown

LIVE = Path(signalbox_router.__file__).parent / "console/static/live"
PROGRAM = Path(__file__).with_name("applied_frames.mjs")
KINDS = ("free", "cached", "used", "shared", "swapped", "reserved", "in transfer")
RESERVED = ("HOLD_KIND_PLAN", "HOLD_KIND_PREFIX", "HOLD_KIND_AUDIT")


def frames_of(name: str, folder: Path) -> list[pb.Frame]:
    replayed = ReplayedFrames(Replay(str(unpack(name, folder))))
    frames: list[pb.Frame] = []
    while (frame := replayed.frame(len(frames))) is not None:
        frames.append(frame)
    return frames


def kind_of(shown: Shown, pool: int, block: int) -> str:
    """Says what a block is, by the definitions in the documentation."""
    held = [kind for kind, blocks in shown.held[pool].items() if block in blocks]
    owners = [
        table.count(block)
        for seq_id, table in shown.tables.items()
        if (shown.sequences[seq_id][0] == "REQUEST_STATE_SWAPPED") is bool(pool)
    ]
    if any(kind not in RESERVED for kind in held):
        return "in transfer"
    if owners := [count for count in owners if count]:
        return "shared" if sum(owners) > 1 else ("used", "swapped")[pool]
    if held:
        return "reserved"
    return "cached" if block in shown.cached[pool] else "free"


def contents_of(table: list[int], described: pb.WorkerDescription) -> list[list[Any]]:
    """Returns the blocks of a table, each with what it is for, in words."""
    groups = list(map(decode_group, described.groups))
    contents = []
    for first in range(0, len(table), len(groups)):
        start = first // len(groups) * described.block_size
        tokens = f"tokens {start + 1} to {start + described.block_size}"
        for block, group in zip(table[first:], groups, strict=False):
            if block != NO_BLOCK:
                contents.append([block, f"{tokens}, {group}" if len(groups) > 1 else tokens])
    return contents


def expected(shown: Shown, described: pb.WorkerDescription) -> dict[str, Any]:
    counts = []
    for pool, size in enumerate((described.num_gpu_blocks, described.num_cpu_blocks)):
        found = Counter(kind_of(shown, pool, block) for block in range(size))
        counts.append([found[kind] for kind in KINDS])
    return {
        "sequences": [
            [seq_id, state.removeprefix("REQUEST_STATE_"), *numbers, shown.tables[seq_id]]
            for seq_id, (state, *numbers) in shown.sequences.items()
        ],
        "pools": [
            {"cached": sorted(cached), "held": held}
            for cached, held in zip(shown.cached, shown.held, strict=True)
        ],
        "counts": counts,
        "contents": [
            [seq_id, contents_of(table, described)] for seq_id, table in shown.tables.items()
        ],
        "groups": describe_groups(list(map(decode_group, described.groups))).replace(" x ", " × "),
    }


@pytest.mark.parametrize("name", ["swap", "drains", "store", "roles", "windows", "states"])
def test_frames_give_the_pictures_that_they_give_in_python(name: str, tmp_path: Path) -> None:
    frames = frames_of(name, tmp_path)
    ran = subprocess.run(
        [node(), PROGRAM],
        input=b"\n".join(map(json_codec.write, frames)),
        stdout=subprocess.PIPE,
        env=os.environ | {"LIVE": str(LIVE)},
        check=True,
    )
    pictures = [json.loads(line) for line in ran.stdout.splitlines()]
    shown: dict[int, Shown] = {}
    described: dict[int, pb.WorkerDescription] = {}
    for frame, picture in zip(frames, pictures, strict=True):
        for number in frame.left_workers:
            del shown[number]
        for worker in frame.workers:
            if worker.HasField("description"):
                described[worker.number] = worker.description
            shown.setdefault(worker.number, Shown()).apply(worker)
        told = dict(picture)
        for number, one in told.items():
            wanted = expected(shown[number], described[number])
            for picture in (one, wanted):
                picture["sequences"].sort()
                picture["contents"].sort()
            assert one == wanted
        assert told.keys() == shown.keys()
