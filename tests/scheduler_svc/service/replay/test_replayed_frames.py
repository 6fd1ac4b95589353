"""The frames that a recording is played with."""

import re
from pathlib import Path

import pytest

from signalbox_protos.recording.v1 import recording_pb2 as pb
from signalbox_scheduler.insight.step_observer import UNOBSERVED
from signalbox_scheduler.service.replay.recording_file import RecordReader, RecordWriter
from signalbox_scheduler.service.replay.replay_codec import Replay
from signalbox_scheduler.service.replay.replayed_frames import ReplayedFrames
from signalbox_scheduler.service.reports.watch_feed import FRAME_S
from tests.scheduler_svc.service.replay.record import unpack
from tests.scheduler_svc.watching import Shown, expected_of


@pytest.mark.parametrize("name", ["serving", "swap", "drains", "store", "pipeline"])
def test_frames_show_what_the_recorded_scheduler_had(name: str, tmp_path: Path) -> None:
    replay = Replay(str(unpack(name, tmp_path)))
    frames = ReplayedFrames(replay)
    first = frames.frame(0)
    assert first is not None and first.is_full
    shown: dict[int, Shown] = {}
    num_steps, before = 0, first.at_ns
    index = 0
    while (frame := frames.frame(index := index + 1)) is not None:
        assert not frame.is_full
        assert frame.at_ns - before > 0.99e9 * FRAME_S or frames.frame(index + 1) is None
        before = frame.at_ns
        for number in frame.left_workers:
            del shown[number]
        for worker in frame.workers:
            shown.setdefault(worker.number, Shown()).apply(worker)
            num_steps += len(worker.steps) + worker.num_omitted_steps
        loops = replay.cluster.step_loops
        assert list(shown.values()) == [expected_of(loop.scheduler) for loop in loops]
    assert not frames.fault
    assert 0 < num_steps <= replay.num_steps  # steps of workers that were lost have no answer
    assert before <= 1e9 * frames.ends_at
    assert all(loop.scheduler.observer is UNOBSERVED for loop in replay.cluster.step_loops)
    for index in range(2):  # frames are kept for those who come later
        assert (again := frames.frame(index)) is not None and again.is_full is not bool(index)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("step_answered", r"record \d+ does not follow from those before it"),
        ("step_sent", r"step \d+ of the recording is planned differently"),
    ],
)
def test_frames_of_a_damaged_recording_end_with_the_reason(
    kind: str, fault: str, tmp_path: Path
) -> None:
    records = [pb.Record.FromString(one) for one in RecordReader(str(unpack("swap", tmp_path)))]
    of_kind = [i for i, one in enumerate(records) if one.WhichOneof("record") == kind]
    records[of_kind[len(of_kind) // 2]].worker_left.worker = 77
    writer = RecordWriter(str(tmp_path / "damaged"))
    for record in records:
        writer.append(record.SerializeToString())
    writer.close()
    frames = ReplayedFrames(Replay(str(tmp_path / "damaged")))
    index = 0
    while frames.frame(index) is not None:
        index += 1
    assert index > 1
    assert re.search(fault, frames.fault)
