"""What a recording is made of: records in a file, and the configuration in its header."""

import json
from pathlib import Path

import pytest

from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from signalbox_scheduler.service.replay.recording_codec import decode_config, encode_config
from signalbox_scheduler.service.replay.recording_file import (
    CannotRecord,
    RecordReader,
    RecordWriter,
)


@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(),
        SchedulerConfig(
            max_num_seqs=3,
            max_num_batched_tokens=5,
            preemption_mode=PreemptionMode.RECOMPUTE,
            num_gpu_blocks_override=7,
            prefix_caching=False,
        ),
    ],
)
def test_configuration_comes_back_from_its_json(config: SchedulerConfig) -> None:
    assert decode_config(encode_config(config)) == config
    assert decode_config(encode_config(config)) != config.model_copy(update={"watermark": 0.5})


def test_configuration_with_a_setting_that_is_not_known_is_refused_by_its_name() -> None:
    values = json.loads(encode_config(SchedulerConfig()))
    with pytest.raises(ValueError, match="of_the_future is not in both"):
        decode_config(json.dumps({**values, "of_the_future": 1}))


def test_records_come_back_in_order_and_a_cut_one_is_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    records = [bytes([i % 256]) * (i * 7) for i in range(300)]
    writer = RecordWriter(path)
    for record in records:
        writer.append(record)
    writer.close()
    assert list(RecordReader(path)) == records
    Path(path).write_bytes(Path(path).read_bytes()[:-10])
    reader = RecordReader(path)
    assert list(reader) == records[:-1]
    assert reader.num_left_over == len(records[-1]) + 2 - 10


def test_older_file_is_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"older")
    RecordWriter(str(path)).close()
    assert path.read_bytes() == b""
    assert (tmp_path / "file.old").read_bytes() == b"older"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/file", "no such file"),
        ("folder", "is a directory"),
        ("there/x", "not a directory"),
        ("a\0b", "null"),
    ],
)
def test_path_that_cannot_be_recorded_to_is_refused_in_one_line_and_left_alone(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "there").write_bytes(b"kept")
    with pytest.raises(CannotRecord, match=f"cannot record to '.*': .*{reason}.*; name a file"):
        RecordWriter(str(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "there"]


def test_recording_that_cannot_be_written_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    writer = RecordWriter(str(tmp_path / "file"))
    monkeypatch.setattr("signalbox_scheduler.service.replay.recording_file.os.write", full)
    writer.append(b"record")
    writer.close()
    writer.append(b"a no-op")
    assert "ends here: No space left on device" in caplog.text
