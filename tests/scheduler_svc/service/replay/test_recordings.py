"""The scheduler plans as it did: each recording is replayed, and every plan is compared.

A change that is to plan otherwise makes them again (`python -m
tests.scheduler_svc.service.replay.record`) and says in its commit which plans differ and why.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message

from signalbox.cli import parse
from signalbox.commands.inspect import replay
from signalbox_protos.recording.v1 import recording_pb2 as pb
from tests.scheduler_svc.service.replay.record import MAKERS, read_records, unpack
from tests.scheduler_svc.service.replay.recorded_histories import SCENARIOS, record_history

ABSENT = {
    "ExecuteModelRequest.trace_context",  # decides nothing
    "Pooled.num_values",  # of vectors of tokens, as is the next: planned as other embeddings
    "Pooling.per_token_seq_ids",
    "RecordHeader.signalbox_version",
}
"""Fields that no recording has."""


@pytest.mark.parametrize("name", MAKERS)
def test_every_plan_is_the_recorded_one(name: str, tmp_path: Path) -> None:
    """Prints both messages of the first that is not, and says which step of which worker it is."""
    path = str(unpack(name, tmp_path))
    replay.run(parse(["replay", path, "--check"]))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_history_is_made_again_from_its_seed(name: str, tmp_path: Path) -> None:
    record_history(tmp_path / "again", SCENARIOS[name])
    made, known = read_records(tmp_path / "again"), read_records(unpack(name, tmp_path))
    for records in (made, known):  # in whatever order the settings are
        values = json.loads(records[0].header.config_json)
        records[0].header.config_json = json.dumps(values, sort_keys=True)
    assert made == known


def test_recordings_have_all_that_a_record_and_a_step_can_have(tmp_path: Path) -> None:
    records = [record for name in MAKERS for record in read_records(unpack(name, tmp_path))]
    missing = set(_possible(pb.Record())) - set(_present(records))
    assert missing == ABSENT


def _possible(message: Message) -> Iterable[str]:
    """Yields the fields of a message and of those in it; requests and models have others' tests."""
    entries: Iterable[Any] = message.DESCRIPTOR.fields
    for entry in entries:
        yield f"{message.DESCRIPTOR.name}.{entry.name}"
        if _is_ours(entry):
            yield from _possible(message_factory.GetMessageClass(entry.message_type)())


def _present(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        for entry, value in message.ListFields():
            yield f"{message.DESCRIPTOR.name}.{entry.name}"
            if _is_ours(entry):
                yield from _present(value if entry.is_repeated else [value])


def _is_ours(entry: Any) -> bool:
    held = entry.message_type
    return held is not None and held.file.package.split(".")[1] in ("recording", "worker")
