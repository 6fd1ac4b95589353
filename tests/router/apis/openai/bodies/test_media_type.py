"""Bodies must be JSON by their Content-Type, and web pages of other origins are refused."""

import json
from typing import Any

import pytest

from tests.router.apis.openai.clients import HI, Http, make_http
from tests.rpc.http.test_client_connection import say, status_of

BODIES: dict[str, Any] = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": HI},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
}


async def post(http: Http, path: str, headers: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Sends exactly these headers, and returns the status and the answer."""
    assert http.stack.router.http is not None
    lengths = f"Host: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    head = f"POST {path} HTTP/1.1\r\n{lengths}{headers}\r\n".encode()
    answer = await say(http.stack.router.http.port, head + body)
    return status_of(answer), json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_of_another_type_is_refused_by_the_name_of_the_header(
    http: Http, path: str
) -> None:
    body = json.dumps(BODIES[path]).encode()
    for headers, said in (
        ("Content-Type: text/plain\r\n", "says 'text/plain'"),
        ("Content-Type: text/plain; charset=utf-8\r\n", "says 'text/plain; charset=utf-8'"),
        ("Content-Type: application/x-www-form-urlencoded\r\n", "says 'application/x-www-form"),
        ("Content-Type: multipart/form-data; boundary=a\r\n", "says 'multipart/form-data"),
        ("Content-Type: application/jsonp\r\n", "says 'application/jsonp'"),
        ("Content-Type: text/plain; a=application/json\r\n", "says 'text/plain; a="),
        ("Content-Type: application/json\r\nContent-Type: text/plain\r\n", "says 'application"),
        ("Content-Type:\r\n", "says ''"),
        ("", "has none"),
    ):
        status, answer = await post(http, path, headers, body)
        assert status == 415, headers
        error = answer["error"]
        assert said in error["message"]
        assert error["message"].startswith("Content-Type: the body must be application/json")
        assert (error["type"], error["param"], error["code"]) == (
            "invalid_request_error",
            None,
            "unsupported_content_type",
        )
    assert http.stack.scheduler.added == []


@pytest.mark.parametrize(
    "value",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON ; a=b",
    ],
)
async def test_json_is_taken_with_any_parameters(http: Http, value: str) -> None:
    for path, body in BODIES.items():
        content = json.dumps(body).encode()
        status, _ = await post(http, path, f"Content-Type: {value}\r\n", content)
        assert status == 200, path


async def test_what_has_no_body_needs_no_type(http: Http) -> None:
    assert http.stack.router.http is not None
    for path in ("/health", "/v1/models", "/version", "/", "/docs"):
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert status_of(await say(http.stack.router.http.port, request.encode())) == 200
    status, answer = await post(http, "/v1/completions", "", b"")
    assert status == 400  # a body is what is missing
    assert "not valid JSON" in answer["error"]["message"]


async def test_a_web_page_cannot_use_a_local_server(http: Http) -> None:
    body = json.dumps(BODIES["/v1/completions"]).encode()
    typed = "Content-Type: application/json\r\n"
    for headers in (
        f"{typed}Origin: https://evil.example\r\n",
        f"{typed}Origin: null\r\n",
        f"{typed}Sec-Fetch-Site: cross-site\r\n",
        f"{typed}Origin: http://evil.example\r\n".replace("Origin", "ORIGIN"),
    ):
        status, answer = await post(http, "/v1/completions", headers, body)
        assert (status, answer["error"]["type"]) == (403, "permission_error"), headers
    assert http.stack.router.http is not None
    rebound = b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert status_of(await say(http.stack.router.http.port, rebound)) == 403
    assert http.stack.scheduler.added == []


async def test_the_docs_of_the_server_may_try_it_and_a_named_page_may_call_it() -> None:
    body = json.dumps(BODIES["/tokenize"]).encode()
    typed = "Content-Type: application/json\r\n"
    ours = f"{typed}Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n"
    page = f"{typed}Origin: https://a.example\r\nSec-Fetch-Site: cross-site\r\n"
    async with make_http(allowed_origins="https://a.example") as http:
        assert (await post(http, "/tokenize", ours, body))[0] == 200
        assert (await post(http, "/tokenize", page, body))[0] == 200
        other = page.replace("a.example", "b.example")
        assert (await post(http, "/tokenize", other, body))[0] == 403
    async with make_http(allowed_hosts="llm.example") as http:
        proxied = {"host": "llm.example"}
        assert (await http.raw.get("/v1/models", headers=proxied)).status_code == 200
        assert (await http.raw.get("/v1/models", headers={"host": "a.b"})).status_code == 403
