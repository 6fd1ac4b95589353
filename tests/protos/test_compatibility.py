"""What was released stays: old bytes say what they said, and what breaks clients is noticed."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.protos import corpus

ROOT = Path(__file__).parents[2]
BUF = Path(sys.executable).with_name("buf")
RELEASES = sorted(corpus.FOLDER.with_name("released").glob("*.binpb"))
CORPORA = sorted(corpus.FOLDER.glob("*.jsonl"))


def unknown_fields(message: Message) -> Iterator[str]:
    """Yields the numbers of fields that a message and all in it hold and do not know."""
    for field in UnknownFieldSet(message):
        yield f"{message.DESCRIPTOR.full_name} {field.field_number}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            held = [one for one in value.values() if isinstance(one, Message)]
        else:
            held = list(value) if field.is_repeated else [value]
        for one in held:
            yield from unknown_fields(one)


def breaking(folder: Path, release: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BUF, "breaking", "--against", str(release)], cwd=folder, capture_output=True, text=True
    )


def copy_contract(folder: Path) -> Path:
    """Copies the protos, and returns the public one's path."""
    shutil.copy(ROOT / "buf.yaml", folder)
    for path in (ROOT / "protos").rglob("*.proto"):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder / "protos/signalbox_protos/inference/v1/inference.proto"


def test_every_release_has_its_corpus() -> None:
    assert RELEASES
    assert [path.stem for path in RELEASES] == [path.stem for path in CORPORA]


@pytest.mark.parametrize("path", CORPORA, ids=lambda path: path.stem)
def test_old_bytes_say_what_they_said(path: Path) -> None:
    specimens = corpus.read(path)
    assert len(specimens) > 30
    for name, data, content in specimens:
        message = corpus.message_class(name).FromString(data)
        assert not list(unknown_fields(message))
        assert corpus.content_of(message) == content


def test_a_corpus_sets_every_field_of_the_public_contract() -> None:
    """Else a field that breaks could go unnoticed."""
    filled = {
        (message.DESCRIPTOR.full_name, field.name)
        for message in corpus.specimens()
        for field, _ in message.ListFields()
    }
    missing = [
        (descriptor.full_name, field.name)
        for file in corpus.FILES
        for descriptor in file.DESCRIPTOR.message_types_by_name.values()
        for field in descriptor.fields
        if (descriptor.full_name, field.name) not in filled
    ]
    assert missing == []


@pytest.mark.skipif(not BUF.exists(), reason="needs buf (make install)")
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_the_contract_breaks_nobody(release: Path) -> None:
    found = breaking(ROOT, release)
    assert found.returncode == 0, found.stdout


@pytest.mark.skipif(not BUF.exists(), reason="needs buf (make install)")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("repeated string stop = 8;", "repeated string stop = 108;"),
        ("optional uint64 seed = 5;", "optional string seed = 5;"),
        ("  bool has_chat_template = 6;\n", ""),
        ("rpc Tokenize(TokenizeRequest)", "rpc Encode(TokenizeRequest)"),
        ("optional float min_p = 4;", "optional float least_p = 4;"),
        ("FINISH_REASON_LENGTH = 2;", "FINISH_REASON_LENGTH = 12;"),
    ],
)
def test_a_change_that_breaks_clients_is_found(tmp_path: Path, before: str, after: str) -> None:
    path = copy_contract(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    found = breaking(tmp_path, RELEASES[-1])
    assert found.returncode == 100, found.stdout + found.stderr
