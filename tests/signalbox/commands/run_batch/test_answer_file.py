"""Output files of batches: what an interruption leaves, and files that are none."""

import json
from pathlib import Path

import pytest

from signalbox.commands.run_batch.answer_file import AnswerFile

IDS = {one: f"batch_req_{one.encode().hex()}" for one in ("a", "b", "c", "é")}
ANSWER = {"status_code": 200, "request_id": "r", "body": {"text": "é"}}
REFUSED = {"status_code": 400, "request_id": "r", "body": {}}


def write(path: Path, **answers: object) -> bytes:
    """Writes answers; of an id without one an error."""
    with AnswerFile(path, IDS) as file:
        for custom_id, response in answers.items():
            error = None if response else {"code": "no_answer", "message": "gone"}
            file.add(custom_id, response, error)  # type: ignore[arg-type]
    return path.read_bytes()


def test_each_answer_has_a_line_at_once(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    with AnswerFile(path, IDS) as file:
        assert file.resume() == set()
        for custom_id in ("b", "a"):
            file.add(custom_id, ANSWER)
            last = json.loads(path.read_text().splitlines()[-1])
            assert last.pop("id") == IDS[custom_id]
            assert last == {"custom_id": custom_id, "response": ANSWER, "error": None}


def test_answers_are_kept_and_failures_are_repeated(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    first = write(path, é=ANSWER).splitlines(keepends=True)
    write(path, a=REFUSED, b=None)
    last = write(path, c=ANSWER).splitlines(keepends=True)[-1:]
    with AnswerFile(path, IDS) as file:
        assert file.resume() == {"é", "c"}
        assert path.read_bytes() == b"".join(first + last)
        file.add("a", ANSWER)
    assert path.read_bytes().startswith(b"".join(first + last))
    assert not list(tmp_path.glob("*.tmp"))
    with AnswerFile(path, IDS) as file:
        assert file.resume() == {"é", "c", "a"}


def test_an_answer_to_an_earlier_form_of_a_request_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    write(path, a=ANSWER)
    before = write(path, b=REFUSED)
    changed = {**IDS, "b": "batch_req_2"}
    with AnswerFile(path, changed) as file:
        assert file.resume() == {"a"}  # that of b failed
    path.write_bytes(before)
    with (
        AnswerFile(path, {**IDS, "a": "batch_req_1"}) as file,
        pytest.raises(ValueError, match=r"answer to 'a', and that request has changed.*remove"),
    ):
        file.resume()
    assert path.read_bytes() == before


def test_a_line_that_was_cut_off_anywhere_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    one = len(write(path, a=ANSWER))
    whole = write(path, b=ANSWER)
    for length in range(one, len(whole)):
        path.write_bytes(whole[:length])
        with AnswerFile(path, IDS) as file:
            assert file.resume() == {"a"}
        assert path.read_bytes() == whole[:one]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"precious", "line 1 is not an answer"),
        (b'{"custom_id": "a", "body": {}}\n', "line 1 is not an answer"),
        (b'{"id": "batch_req_1"}\n', "line 1 is not an answer"),
        (b'{"id": "batch_req_1", "custom_id": "z", "response": null}\n', "has an answer to 'z'"),
        (b'{"id": "vllm-1", "custom_id": "a", "response": null}\n', "line 1 is not an answer"),
    ],
)
def test_a_file_of_anything_else_is_left_as_it_is(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "answers"
    path.write_bytes(content)
    with AnswerFile(path, IDS) as file, pytest.raises(ValueError, match=reason):
        file.resume()
    assert path.read_bytes() == content


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    with AnswerFile(path, IDS), pytest.raises(ValueError, match="another process writes it"):
        AnswerFile(path, IDS)
    write(path, a=ANSWER)
    with pytest.raises(ValueError, match="cannot write --output-file"):
        AnswerFile(tmp_path, IDS)
