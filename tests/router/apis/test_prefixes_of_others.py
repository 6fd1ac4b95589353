"""Two tenants, and two keys of one tenant, try to learn of each other's prompts.

By diagnostics and ids they learn what a client learns of a request that never was. What they can
still learn is the time of a prompt whose prefix is cached, and `cached_tokens`: within a tenant,
where prefixes are shared, as without diagnostics.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from signalbox_router.prompt.prefix.prompt_records import OwnerRecords
from tests.router.apis.messages.test_diagnostics import LONG, SYSTEM, caching
from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.limits.test_api_keys import entry, write_keys

VICTIM = "victim"
OTHERS = {"of the same tenant": "second", "of another tenant": "third"}
TALK = [{"role": "user", "content": LONG}]
GUESSES = (SYSTEM, LONG)
NAMES = {"x-session-id": "one"}


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Http]:
    keys = write_keys(
        tmp_path / "keys",
        entry(VICTIM, tenant="a") | {"name": "first"},
        entry(OTHERS["of the same tenant"], tenant="a") | {"name": "second"},
        entry(OTHERS["of another tenant"], tenant="b") | {"name": "third"},
    )
    async with make_http(caching(0), api_keys=keys) as http:
        yield http


async def ask(http: Http, key: str, path: str, **fields: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} | NAMES
    answer = await http.raw.post(f"/v1/{path}", json={"model": MODEL} | fields, headers=headers)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def message(http: Http, key: str, system: str, **fields: Any) -> dict[str, Any]:
    body = {"max_tokens": 8, "system": system, "messages": TALK} | fields
    return await ask(http, key, "messages", **body)


async def response(http: Http, key: str, system: str, **fields: Any) -> dict[str, Any]:
    body = {"instructions": system, "input": TALK, "store": False} | fields
    return await ask(http, key, "responses", **body)


def naming(response_id: str) -> dict[str, Any]:
    return {"comparison_response_id": response_id}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_another_learns_nothing_by_ids_and_sessions(
    http: Http, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = await message(http, VICTIM, SYSTEM, diagnostics={})
    written = await response(http, VICTIM, SYSTEM, prompt_cache_key="one")
    for guess in GUESSES:  # right and wrong guesses look alike, and like a message that never was
        for name in (said["id"], "msg_unknown"):
            found = await message(http, other, guess, diagnostics={"previous_message_id": name})
            reason = {"type": "previous_message_not_found"}
            assert found["diagnostics"] == {"cache_miss_reason": reason}
        for name in (written["id"], "resp_unknown"):
            found = await response(http, other, guess, prompt_cache_options=naming(name))
            kind = {"type": "comparison_response_not_found"}
            assert found["prompt_cache_diagnostics"] == kind
    own = await message(http, VICTIM, SYSTEM, diagnostics={"previous_message_id": said["id"]})
    assert own["diagnostics"]["cache_miss_reason"]["cause"] == "evicted"


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_anothers_first_request_of_a_session_has_nothing_before_it(
    http: Http, other: str
) -> None:
    await message(http, VICTIM, SYSTEM, diagnostics={})
    first = await message(http, other, SYSTEM, diagnostics={})
    assert first["diagnostics"] is None
    assert not http.stack.scheduler.added[-1].HasField("prefix")  # nor is the scheduler told


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_no_time_depends_on_the_records_of_another(
    http: Http, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of a comparison is done on the records of the caller alone."""
    said = await message(http, VICTIM, SYSTEM, diagnostics={})
    used: list[OwnerRecords] = []
    find, of_session = OwnerRecords.find, OwnerRecords.of_session

    def seen_find(self: OwnerRecords, name: str) -> Any:
        used.append(self)
        return find(self, name)

    def seen_session(self: OwnerRecords, session: bytes) -> Any:
        used.append(self)
        return of_session(self, session)

    monkeypatch.setattr(OwnerRecords, "find", seen_find)
    monkeypatch.setattr(OwnerRecords, "of_session", seen_session)
    await message(http, VICTIM, SYSTEM, diagnostics={"previous_message_id": said["id"]})
    (own,) = set(map(id, used))
    used.clear()
    await message(http, other, SYSTEM, diagnostics={"previous_message_id": said["id"]})
    await message(http, other, SYSTEM, diagnostics={})
    assert used
    assert own not in map(id, used)


async def test_ids_of_answers_cannot_be_guessed(http: Http) -> None:
    ids = {(await message(http, VICTIM, SYSTEM, diagnostics={}))["id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(len(one) == len("msg_") + 32 for one in ids)
