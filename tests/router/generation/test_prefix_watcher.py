"""Prompts are compared with earlier ones of the same tenant and key, and no other's."""

from typing import Any

import pytest

from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_router.generation.prefix_watcher import PrefixWatcher, SentPrompt
from signalbox_router.limits.api_keys import ApiKey
from signalbox_router.prompt.prefix import prompt_records
from signalbox_router.prompt.prefix.comparison import PromptRecord
from signalbox_router.prompt.prefix.prompt_digest import BLOCK_TOKENS, DigestKey, digest_of
from signalbox_router.prompt.prefix.prompt_records import OwnerRecords, PromptRecords
from signalbox_router.requests.api_request import ApiRequest, PrefixQuery, PromptTokens
from signalbox_router.requests.prefix_watch import PrefixWatch

LONG = list(range(100, 1100))
SESSION = b"s" * 16


def key_of(number: int) -> ApiKey:
    return ApiKey(name=f"key {number}", sha256=bytes([number]) * 32, tenant="a")


class Client:
    """A client of one tenant and key."""

    def __init__(self, watcher: PrefixWatcher, tenant: str = "a", key: int = 1) -> None:
        self._watcher, self._tenant, self._key = watcher, tenant, key_of(key)

    def sends(
        self,
        token_ids: list[int],
        *,
        session: bytes = b"",
        compared_id: str | None = None,
        answer_id: str = "",
        salt: str = "",
    ) -> PrefixWatch:
        query = PrefixQuery(answer_id, compared_id is not None, compared_id)
        request = ApiRequest(prompt=PromptTokens(token_ids), prefix_query=query)
        sent = SentPrompt(token_ids, "", ("m", salt), session)
        return self._watcher.watch(request, sent, tenant=self._tenant, key=self._key)


def changed_at(position: int) -> list[int]:
    return [*LONG[:position], 7, *LONG[position + 1 :]]


def test_a_session_is_compared_with_its_last_request() -> None:
    client = Client(PrefixWatcher())
    assert client.sends(LONG, session=SESSION).comparison is None
    again = client.sends(LONG, session=SESSION).comparison
    assert again == PrefixComparison(PrefixCause.UNCHANGED, 31 * BLOCK_TOKENS)
    found = client.sends(changed_at(500), session=SESSION).comparison
    kept = 500 // BLOCK_TOKENS * BLOCK_TOKENS
    assert found == PrefixComparison(PrefixCause.MESSAGE_CHANGED, kept, 1000 - kept, "prompt")
    assert client.sends(LONG, session=b"t" * 16).comparison is None


def test_a_helper_between_two_turns_breaks_nothing() -> None:
    client = Client(PrefixWatcher())
    client.sends(LONG, session=SESSION)
    client.sends(LONG[::-1], session=SESSION)
    found = client.sends([*LONG, *LONG], session=SESSION).comparison
    assert found is not None and found.cause is PrefixCause.UNCHANGED


def test_a_request_that_is_named_is_compared_whatever_its_session() -> None:
    client = Client(PrefixWatcher())
    client.sends(LONG, answer_id="one", session=SESSION)
    client.sends(LONG[::-1], answer_id="two", session=SESSION)
    found = client.sends(LONG, compared_id="one").comparison
    assert found is not None and found.cause is PrefixCause.UNCHANGED
    other = client.sends(LONG, compared_id="two").comparison
    assert other is not None and other.cause is PrefixCause.MESSAGE_CHANGED
    unknown = client.sends(LONG, compared_id="three").comparison
    assert unknown == PrefixComparison(PrefixCause.NOT_FOUND)
    salted = client.sends(LONG, compared_id="one", salt="x").comparison
    assert salted == PrefixComparison(PrefixCause.MODEL_CHANGED, 0, 1000, "model")


@pytest.mark.parametrize("other", [("b", 1), ("a", 2), ("", 1)])
def test_another_owner_finds_nothing_and_hashes_otherwise(other: tuple[str, int]) -> None:
    watcher = PrefixWatcher()
    own = Client(watcher).sends(LONG, answer_id="one", session=SESSION)
    stranger = Client(watcher, *other)
    assert stranger.sends(LONG, session=SESSION).comparison is None
    named = stranger.sends(LONG, compared_id="one", session=SESSION)
    assert named.comparison == PrefixComparison(PrefixCause.NOT_FOUND)
    hashes, others = own.record.prompt, named.record.prompt
    assert hashes.model != others.model
    assert not set(_hashes(hashes.blocks)) & set(_hashes(others.blocks))
    stranger.sends(changed_at(0), answer_id="one", session=SESSION)  # takes no place of the owner's
    found = Client(watcher).sends(LONG, compared_id="one").comparison
    assert found is not None and found.cause is PrefixCause.UNCHANGED


def _hashes(blocks: bytes) -> list[bytes]:
    return [blocks[start : start + 8] for start in range(0, len(blocks), 8)]


@pytest.mark.parametrize(
    ("scheduler", "num_cached", "cause"),
    [
        ("here", 992, PrefixCause.UNCHANGED),
        ("here", 900, PrefixCause.UNCHANGED),  # snapshots of recurrent layers lie apart
        ("here", 600, PrefixCause.EVICTED),
        ("there", 0, PrefixCause.OTHER_SCHEDULER),
        ("there", 992, PrefixCause.UNCHANGED),  # a store has it
    ],
)
def test_what_the_scheduler_has_not_found_has_a_cause(
    scheduler: str, num_cached: int, cause: PrefixCause
) -> None:
    client = Client(PrefixWatcher())
    first = client.sends(LONG, session=SESSION)
    first.send_to("here")
    first.keep(LONG, [], None, num_reasoning_tokens=0)
    again = client.sends(LONG, session=SESSION)
    again.send_to(scheduler)
    again.ended(num_cached_tokens=num_cached)
    assert again.comparison is not None
    assert again.comparison.cause is cause
    assert again.comparison.is_elsewhere is (scheduler == "there")
    is_lost = cause is not PrefixCause.UNCHANGED
    assert again.comparison.num_lost_tokens == (992 - num_cached if is_lost else 0)


def make_record(num_tokens: int, **fields: Any) -> PromptRecord:
    key = DigestKey(b"owner")
    prompt = digest_of(None, [1] * num_tokens, "", model=("m",), key=key)
    return PromptRecord(prompt=prompt, **fields)


def test_records_of_an_owner_are_bounded_in_number_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_records, "MAX_RECORDS", 3)
    monkeypatch.setattr(prompt_records, "MAX_BYTES", 1000)
    records = OwnerRecords()
    for name in "abcd":
        records.add(name, make_record(64))
    assert [records.find(name) is not None for name in "abcd"] == [False, True, True, True]
    records.add("b", make_record(96))  # is the last one now
    records.add("e", make_record(64))
    assert [records.find(name) is not None for name in "bcde"] == [True, False, True, True]
    records.add("f", make_record(3968))  # 992 bytes of hashes
    assert [records.find(name) is not None for name in "bdef"] == [False, False, False, True]
    records.add("g", make_record(4032))
    assert records.find("g") is records.find("f") is None


def test_the_owner_that_was_used_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_records, "MAX_OWNERS", 2)
    records = PromptRecords()
    for owner in (b"a", b"b"):
        records.of(owner).add("one", make_record(64))
    records.of(b"a")
    records.of(b"c")
    assert records.of(b"a").find("one") is not None
    assert records.of(b"b").find("one") is None
