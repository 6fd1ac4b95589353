"""Batch files: what is read of a line, and mistakes that are found before anything is sent."""

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.batch_create_params import BatchCreateParams

from signalbox.commands.run_batch.batch_file import (
    ENDPOINTS,
    BadBatchLine,
    find_requests,
    read_request,
)
from signalbox_router.apis.messages.routes import MessagesApi
from signalbox_router.apis.openai.pooling_routes import PoolingApi
from signalbox_router.apis.openai.routes import Api
from signalbox_router.apis.responses.routes import ResponsesApi

BODY = {"prompt": "Once upon a time — and again"}


def line(custom_id: str, **changes: Any) -> dict[str, Any]:
    fields = {"method": "POST", "url": "/v1/completions", "body": BODY}
    return {"custom_id": custom_id, **fields, **changes}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in lines))
    return path


def test_requests_are_found_where_they_lie(tmp_path: Path) -> None:
    path = write(tmp_path / "batch", line("a"), line("é"), line("c", url="/v1/embeddings"))
    path.write_text(path.read_text().replace("\n", "\n\r\n", 1) + "\n")
    found = find_requests(path)
    assert [one.custom_id for one in found] == ["a", "é", "c"]
    assert [read_request(path, one) for one in found] == [
        ("/v1/completions", BODY),
        ("/v1/completions", BODY),
        ("/v1/embeddings", BODY),
    ]


def test_a_file_that_has_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "batch", line("a"), line("b"))
    *_, last = find_requests(path)
    write(path, line("a", body={}), line("b"))
    with pytest.raises(ValueError, match="has changed since"):
        read_request(path, last)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ([], "expected a JSON object"),
        ({"custom_id": "b", "method": "POST", "url": "/v1/completions"}, "body is missing"),
        (line("b", model="m"), "'model' is not a field of a batch request"),
        (line("a"), "an earlier line has the custom_id 'a', too"),
        (line(""), "custom_id is not a string"),
        (line("b", method="GET"), "method is not POST"),
        (line("b", url="/v1/load_lora_adapter"), "url is not one of /v1/chat/completions, "),
        (line("b", body=[]), "body is not a JSON object"),
        (line("b", body={"stream": True}), "body.stream is set"),
        (line("b", body={"background": True}), "body.background is set"),
    ],
)
def test_a_mistake_is_told_with_its_line(second: Any, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "batch", line("a"), second)
    with pytest.raises(BadBatchLine, match=f"batch, line 2: {reason}"):
        find_requests(path)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_told_with_its_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(BadBatchLine, match="line 1: "):
        find_requests(tmp_path / "batch")


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "batch").write_text("\n")
    with pytest.raises(ValueError, match="has no requests"):
        find_requests(tmp_path / "batch")
    with pytest.raises(ValueError, match="cannot read"):
        find_requests(tmp_path / "none")


def test_endpoints_are_those_of_openais_batches_that_are_served() -> None:
    apis = (Api, ResponsesApi, MessagesApi, PoolingApi)
    served = {route.path for api in apis for route in api.ROUTES}
    hints = get_type_hints(BatchCreateParams)["endpoint"]
    assert set(get_args(hints)) & served <= set(ENDPOINTS) <= served
