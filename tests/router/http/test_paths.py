"""Paths in the spellings of clients, and those of other servers' APIs."""

from typing import Any

import pytest

from signalbox_router.http.paths import NOT_SERVED, served_path
from tests.router.apis.openai.clients import HI, Http, make_http

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("sent", "served"),
    [
        ("/v1/models/", "/v1/models"),
        ("/models", "/v1/models"),
        ("/models/tiny/", "/v1/models/tiny/"),
        ("/v1/models//srv/a//b.gguf", "/v1/models//srv/a//b.gguf"),
        ("/chat/completions/", CHAT),
        ("//v1//chat/completions", CHAT),
        ("/completions", "/v1/completions"),
        ("/embeddings", "/v1/embeddings"),
        ("/score/", "/score"),
        ("/", "/"),
        ("//", "/"),
        ("/docs/", "/docs/"),
        ("/v1/embed", "/v1/embed"),
        ("/embed", "/embed"),
    ],
)
def test_a_path_has_one_form(sent: str, served: str) -> None:
    assert served_path(sent) == served
    assert served_path(served) == served


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/", None),
        ("/models", None),
        ("/models/tiny", None),
        ("/v1/models/tiny/", None),
        ("/health/", None),
        ("/v1/chat/completions/", {"messages": HI}),
        ("/chat/completions", {"messages": HI}),
        ("/completions", {"prompt": "Hi"}),
        ("/tokenize/", {"prompt": "Hi"}),
    ],
)
async def test_clients_reach_the_api_by_each_spelling(
    http: Http, path: str, body: dict[str, Any] | None
) -> None:
    method = "GET" if body is None else "POST"
    answer = await http.raw.request(method, path, json=body)
    assert answer.status_code == 200
    if body is None:
        head = await http.raw.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == answer.headers["content-length"]
        posted = await http.raw.put(path, json={})
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
    else:
        head = await http.raw.head(path)
        assert (head.status_code, head.headers["allow"]) == (405, "POST")


async def test_an_unserved_api_is_refused_by_name_with_what_to_use(http: Http) -> None:
    served = (await http.raw.get("/openapi.json")).json()["paths"].keys()
    unserved = [path for path in NOT_SERVED if path not in served]
    for path in (*unserved, "/v1/responses/resp_1/x", "/api/blobs/a", "/v1/files/"):
        for method in ("GET", "POST"):
            answer = await http.raw.request(method, path, json={})
            error = answer.json()["error"]
            assert answer.status_code == 404
            if not path.startswith("/v1/messages"):  # errors have no code there
                assert error["code"] == "unknown_url"
            assert error["message"].startswith(f"{method} {path.rstrip('/')}: not served; ")
    advised = " ".join(NOT_SERVED.values())
    used = {one.strip(".,;") for one in advised.split() if one.startswith("/") and one != "/v1"}
    assert used <= served


async def test_posts_that_load_models_elsewhere_are_told_the_command(http: Http) -> None:
    for word in ("load", "unload"):
        answer = await http.raw.post(f"/models/{word}", json={"model": "chat"})
        assert answer.status_code == 405
        assert f"`signalbox {word} NAME`" in answer.json()["error"]["message"]


async def test_a_path_without_a_key_is_the_same_in_each_spelling(tmp_path: Any) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("[]")
    async with make_http(api_keys=str(keys)) as http:
        for path, expected in (("/health/", 200), ("/models", 401), ("/responses", 401)):
            answer = await http.raw.get(path)
            assert answer.status_code == expected
            assert answer.headers["x-request-id"]
