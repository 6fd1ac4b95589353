"""`signalbox verify`, over the simulated model."""

import json
from pathlib import Path
from typing import Any

import pytest

from signalbox import SamplingParams
from signalbox_router.receipts.receipt_codec import SIGNATURE, signed_part
from signalbox_router.receipts.receipt_key import ReceiptKey
from tests.router.receipts.test_receipt_key import write_key
from tests.signalbox.llm.in_process.test_recomputation import issue
from tests.signalbox.llm.make import make_llm
from tests.signalbox.stacks import run_here


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key(tmp_path_factory.mktemp("keys") / "key")


@pytest.fixture(scope="module")
def issued(key: Path) -> dict[str, Any]:
    """A receipt that is signed."""
    with make_llm() as llm:
        core = llm.llm_engine._core
        document = issue(core, SamplingParams(temperature=1, seed=4, n=2, max_tokens=5))
    return document | {SIGNATURE: ReceiptKey(str(key)).sign(signed_part(document))}


def verify(tmp_path: Path, document: object, *arguments: str) -> tuple[int, str]:
    """Returns the exit status, and what was printed."""
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(document))
    done = run_here("verify", str(file), *arguments)
    return done.returncode, done.stdout + done.stderr


def test_a_receipt_of_the_model_is_computed_again(
    tmp_path: Path, issued: dict[str, Any], key: Path
) -> None:
    public = ("--public-key", str(key.with_suffix(".pub")))
    status, printed = verify(tmp_path, issued, "--simulate", *public)
    assert (status, "signed by " in printed) == (0, True)
    assert "computed again and equal: 10 tokens of 2 sequences" in printed
    status, printed = verify(tmp_path, {"id": "cmpl-1", "receipt": issued}, "--simulate")
    assert (status, "check that it is the server's" in printed) == (0, True)


def test_the_first_position_that_differs_is_said(tmp_path: Path, issued: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(issued))
    del changed[SIGNATURE]
    tokens = changed["outputs"][1]["token_ids"]
    tokens[2:] = [300, 301, 302]
    status, printed = verify(tmp_path, changed, "--simulate")
    assert status == 1
    position = len(changed["prompt_token_ids"]) + 2
    assert f"token 3 of sequence 1 (position {position}) differs: the receipt has 300" in printed
    assert "not signed" in printed


def test_what_was_changed_is_not_what_was_signed(
    tmp_path: Path, issued: dict[str, Any], key: Path
) -> None:
    other = write_key(tmp_path / "other").with_suffix(".pub")
    for changed, arguments in (
        (issued | {"request_id": "another"}, ()),
        (issued, ("--public-key", str(other))),
        ({k: v for k, v in issued.items() if k != SIGNATURE}, ("--public-key", str(other))),
    ):
        status, printed = verify(tmp_path, changed, "--signature-only", *arguments)
        assert status == 1
        assert "signed" in printed
    assert verify(tmp_path, issued, "--signature-only")[0] == 0


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "has no receipt"),
        ({"unavailable": "a sequence has failed"}, "no receipt of this request: a sequence"),
        ({"form": 9}, "form is 9"),
    ],
)
def test_what_is_no_receipt_is_refused(tmp_path: Path, document: object, said: str) -> None:
    status, printed = verify(tmp_path, document, "--simulate")
    assert (status, said in printed) == (1, True)


def test_a_receipt_without_signature_and_model_is_not_called_verified(
    tmp_path: Path, issued: dict[str, Any]
) -> None:
    plain = {name: value for name, value in issued.items() if name != SIGNATURE}
    for unsigned in (plain, plain | {SIGNATURE: None}):
        assert verify(tmp_path, unsigned, "--signature-only")[0] == 1
    status, printed = verify(tmp_path, plain)
    assert (status, "give a MODEL" in printed) == (1, True)


@pytest.mark.parametrize("tolerance", ["-1", "nan", "inf"])
def test_a_tolerance_is_a_bound(tmp_path: Path, issued: dict[str, Any], tolerance: str) -> None:
    status, printed = verify(tmp_path, issued, "--simulate", f"--tolerance={tolerance}")
    assert (status, "--tolerance is" in printed) == (1, True)
