"""The hash of a session: two owners never share one, and every router makes the same."""

import hashlib
import json

import pytest

from signalbox_router.limits.api_keys import ApiKey
from signalbox_router.requests.session_key import (
    name_in_headers,
    name_in_user_id,
    session_key,
)
from tests.agents.recorded_requests import recorded

NAMED = {
    "claude_code": "48c13aec-2c67-41bb-9721-bac6d6ef7bcb",
    "codex": "01a22783-c92b-7d41-a0d5-80b8ffea3915",
    "opencode": "ses_dd87bdeb4ffeLCTe0KiYTk6XgY",
    "qwen_code": "",
}
UUID = "54c1eb09-bc4c-4d2f-98eb-6d2ab2d5e2fe"


def make_key(text: str, *, tenant: str = "team") -> ApiKey:
    return ApiKey(name=text, sha256=hashlib.sha256(text.encode()).digest(), tenant=tenant)


def test_no_two_owners_share_a_session() -> None:
    keys = [make_key("blue"), make_key("red")]
    owners = [("team", keys[0]), ("team", keys[1]), ("team", None), ("", None), ("te", None)]
    names = ["a", "b", "am", "team", "\x00a"]
    made = [session_key(name, tenant=tenant, key=key) for tenant, key in owners for name in names]
    assert len(set(made)) == len(owners) * len(names)
    assert {len(one) for one in made} == {16}


def test_a_request_without_a_name_is_of_no_session() -> None:
    assert session_key("", tenant="team", key=make_key("blue")) == b""


def test_every_router_makes_the_same_hash() -> None:
    made = session_key("café", tenant="team", key=None)
    assert made.hex() == "35635c4c027768d8e4c61082fc9cafb0"


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([(b"session-id", b"a")], "a"),
        ([(b"x-session-id", b"a")], "a"),
        ([(b"x-claude-code-session-id", b"c"), (b"x-session-id", b"b")], "b"),
        ([(b"x-session-id", b"b"), (b"session-id", b"a")], "a"),
        ([(b"session-id", b""), (b"x-session-id", b"b")], "b"),
        ([(b"session", b"a"), (b"accept", b"*/*")], ""),
    ],
)
def test_the_first_header_that_names_a_session_counts(
    headers: list[tuple[bytes, bytes]], name: str
) -> None:
    assert name_in_headers(headers) == name


@pytest.mark.parametrize(
    ("user_id", "name"),
    [
        (f"user_{'0' * 64}_account__session_{UUID}", UUID),
        (json.dumps({"device_id": "d", "account_uuid": "", "session_id": UUID}), UUID),
        (json.dumps({"session_id": UUID}, separators=(",", ":")), UUID),
        ("user-17", ""),
        ("{", ""),
    ],
)
def test_a_user_id_of_claude_code_names_a_session(user_id: str, name: str) -> None:
    assert name_in_user_id(user_id) == name


@pytest.mark.parametrize(("agent", "name"), NAMED.items())
def test_agents_name_their_sessions(agent: str, name: str) -> None:
    request = recorded(agent)
    headers = [(key.lower().encode(), value.encode()) for key, value in request.headers.items()]
    assert name_in_headers(headers) == name
    assert request.body.get("prompt_cache_key", name) == name
