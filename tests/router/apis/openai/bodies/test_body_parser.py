"""Bodies that are parsed in pieces are what they are as a whole, and are counted before."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from signalbox_router.apis.messages.types import CountTokensBody
from signalbox_router.apis.openai.bodies import body_parser, json_values
from signalbox_router.apis.openai.bodies.body_parser import parse
from signalbox_router.apis.openai.requests.chat_types import ChatBody, DetokenizeBody
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.requests.types import Body, CompletionBody
from signalbox_router.limits import json_scan

TEXTS = st.text(alphabet='a",:[]{}\\é\n', max_size=8)
IDS = st.lists(st.integers(0, 300), max_size=8)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"])},
        optional={
            "content": TEXTS
            | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS})),
            "name": TEXTS,
            "wrong": st.integers(),
        },
    ),
    max_size=6,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "prompt": TEXTS | IDS | st.lists(TEXTS, max_size=6) | st.lists(IDS, max_size=6) | st.floats(),
    "messages": MESSAGES,
    "allowed_token_ids": IDS,
    "tokens": IDS,
    "logit_bias": st.dictionaries(TEXTS, st.integers(), max_size=4),
    "unknown": st.recursive(st.none() | TEXTS, lambda inner: st.lists(inner, max_size=3)),
}
BODIES = st.fixed_dictionaries({}, optional=FIELDS)
KINDS = st.sampled_from([CompletionBody, ChatBody, CountTokensBody, DetokenizeBody])


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts bodies of any length, wherever they can be cut."""
    monkeypatch.setattr(body_parser, "SMALL_BODY_BYTES", -1)
    monkeypatch.setattr(body_parser, "LONG_ITEM_BYTES", 8)
    monkeypatch.setattr(json_scan, "WINDOW_BYTES", 4)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What is given to the parser."""
    seen: list[bytes] = []

    def noted(content: bytes) -> Any:
        seen.append(content)
        return json_values.loaded(content)

    monkeypatch.setattr(body_parser, "loaded", noted)
    yield seen


def parsed(content: bytes, kind: type[Body]) -> tuple[str, set[str]] | None:
    """Returns the body as text, in which one NaN equals another, with the names of the fields
    that were given; None if it is refused."""
    try:
        body = parse(content, kind)
    except BadRequest:
        return None
    return repr(body), body.model_fields_set


def refusal(content: bytes, kind: type[Body] = CompletionBody) -> BadRequest:
    with pytest.raises(BadRequest) as refused:
        parse(content, kind)
    return refused.value


def compact(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


@pytest.mark.usefixtures("in_pieces")
@settings(max_examples=150)
@given(fields=BODIES, kind=KINDS, ascii_only=st.booleans(), spaces=st.booleans())
def test_a_body_in_pieces_is_what_it_is_as_a_whole(
    fields: dict[str, Any], kind: type[Body], ascii_only: bool, spaces: bool
) -> None:
    content = json.dumps(fields, ensure_ascii=ascii_only, indent=3 if spaces else None).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_parser, "SMALL_BODY_BYTES", 1 << 30)
        whole = parsed(content, kind)
    assert parsed(content, kind) == whole


@pytest.mark.usefixtures("in_pieces")
@settings(max_examples=150)
@given(fields=BODIES, kind=KINDS, data=st.data())
def test_a_broken_body_is_refused_in_pieces_too(
    fields: dict[str, Any], kind: type[Body], data: st.DataObject
) -> None:
    content = bytearray(json.dumps(fields).encode())
    at = data.draw(st.integers(0, len(content) - 1))
    with_what = data.draw(st.sampled_from([b"", b",", b"]", b"}", b"[", b'"', b"\\", b"1", b":"]))
    content[at : at + data.draw(st.integers(0, 2))] = with_what
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_parser, "SMALL_BODY_BYTES", 1 << 30)
        whole = parsed(bytes(content), kind)
    assert parsed(bytes(content), kind) == whole


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b'{"prompt":[1,2,3,4,5,6,7,8,9.5]}', "prompt[8]"),
        (b'{"prompt":["aaaaaaaaaa","b",3]}', "prompt[2]"),
        (b'{"prompt":[[1,2],[3,4],[5,6],[7,8,9.5]]}', "prompt[3][2]"),
        (b'{"prompt":[[1,2,3,4,5,6,7,8,9,10,11,"a"]]}', "prompt[0][11]"),
        (b'{"prompt":[1,2,3,4,5,6,,7]}', None),
        (b'{"prompt":[1,2,3,4,5,6,7,]}', None),
        (b'{"prompt":[1,2,3,4,5,6,7},"n":1}', None),
        (b'{"prompt":[1,2,3,4,5,6,7],"prompt":"a"}', "prompt"),
        (b'{"prompt":["a"],"logit_bias":{"5":1,"6":1,"5":2}}', "5"),
    ],
)
def test_an_error_in_a_piece_has_its_place_in_the_body(content: bytes, param: str | None) -> None:
    assert refusal(content).param == param


def test_a_million_wrong_ids_are_one_error(pieces: list[bytes]) -> None:
    error = refusal(b'{"prompt":[' + b"1.5," * 1_000_000 + b"1.5]}")
    assert (error.param, len(pieces)) == ("prompt[0]", 2)
    assert max(map(len, pieces)) <= 2 * json_scan.WINDOW_BYTES


def test_wrong_parts_of_a_message_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(
        body_parser,
        "unreadable",
        lambda error, *_, **__: counts.append(error.error_count()) or BadRequest(""),
    )
    refusal(compact(messages=[{"role": "user", "content": [1.5] * 20_000}]), ChatBody)
    refusal(compact(messages=[{"role": "user", "content": [1.5] * 2_000}]), ChatBody)
    refusal(compact(prompt=[1.5] * 3_000))
    assert max(counts) <= 4  # one for each kind of value that there could be


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b'{"messages":[' + b"{}," * 300_000 + b"{}]}", "messages"),
        (b'{"messages":[],"tools":[' + b"{}," * 300_000 + b"{}]}", "tools"),
        (b'{"chat_template_kwargs":{"a":[' + b"0," * 200_000 + b"0]}}", "chat_template_kwargs"),
        (b'{"messages":[],"logit_bias":{' + b'"1":2,' * 20_000 + b'"0":2}}', "logit_bias"),
        (b'{"messages":[],"unknown":[' + b"0," * 200_000 + b"0]}", "unknown"),
        (b'{"messages":[' + b"[" * 20_000, None),
        (b"{" + b'"":1,' * 20_000 + b'"":1}', None),
        (b"[" * 1_000_000, None),
        (b'{"messages":[{"role":"user","content":[' + b"0," * 100_000 + b"0]},{}]}", None),
    ],
)  # fmt: skip
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(
    content: bytes, param: str | None, pieces: list[bytes]
) -> None:
    assert refusal(content, ChatBody).param == param
    assert max(map(len, pieces), default=0) <= 100  # at most what is left of it without the list


def test_bodies_that_are_legal_are_served_up_to_the_edge(pieces: list[bytes]) -> None:
    text = '",[]{}:\\' * (512 << 10)
    assert len(text) == 4 << 20
    assert parse(compact(prompt=text[: 3 << 20]), CompletionBody).prompt == text[: 3 << 20]
    ids = [30_000 + i % 1000 for i in range(131_071)]
    assert parse(compact(prompt=ids), CompletionBody).prompt == ids
    assert parse(compact(prompt=[ids]), CompletionBody).prompt == [ids]
    many = [[1, 2, 3]] * 1023 + [ids]
    assert parse(compact(prompt=many), CompletionBody).prompt == many
    allowed = list(range(256_000))
    body = parse(compact(prompt="a", allowed_token_ids=allowed), CompletionBody)
    assert body.allowed_token_ids == allowed
    turns = [{"role": "user", "content": "a"}] * 65_536
    assert len(parse(compact(messages=turns), ChatBody).messages) == 65_536
    schema = {"enum": ["x" * 500] * 125}
    tools = [
        {"type": "function", "function": {"name": f"t{i}", "parameters": schema}}
        for i in range(128)
    ]
    assert len(parse(compact(messages=turns[:1], tools=tools), ChatBody).tools or ()) == 128
    biases = {str(i): 1.0 for i in range(1024)}
    assert (
        parse(compact(prompt="a" * 20_000, logit_bias=biases), CompletionBody).logit_bias == biases
    )
    tokens = [1] * 1_000_000
    assert parse(compact(tokens=tokens), DetokenizeBody).tokens == tokens


def test_a_long_list_is_parsed_in_short_pieces(
    pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    validate = TypeAdapter.validate_python

    def noted(self: Any, value: Any, **options: Any) -> Any:
        checked.append(len(value))
        return validate(self, value, **options)

    monkeypatch.setattr(TypeAdapter, "validate_python", noted)
    for prompt in ([1] * 1_000_000, [[1] * 1_000_000], [[1] * 1_000] * 1_000):
        assert parse(compact(prompt=prompt), CompletionBody).prompt == prompt
        assert max(map(len, pieces)) <= 3 * json_scan.WINDOW_BYTES
        assert max(checked) <= 2 * json_scan.WINDOW_BYTES


def test_a_key_of_megabytes_is_not_repeated_in_the_error() -> None:
    key = "k" * (1 << 20)
    for content in (b'{"%b":1,"%b":2}' % (key.encode(), key.encode()), compact(prompt={key: 1})):
        error = refusal(content)
        assert len(error.message) + len(error.param or "") < 1000
