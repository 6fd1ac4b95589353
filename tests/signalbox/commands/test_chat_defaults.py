"""How `signalbox chat` draws where its flags say nothing."""

from typing import Any

import grpc

from signalbox.commands.chat_defaults import MAX_TOKENS, OWN_DEFAULTS, chat_defaults
from signalbox_client import Answer, DefaultSamplingParams, FieldViolation, Output, RequestError


def make_served(**changes: Any) -> DefaultSamplingParams:
    fields: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": None,
        "from_model": (),
        "from_override": (),
    }
    return DefaultSamplingParams(**fields | changes)


def test_a_model_that_brings_none_is_drawn_from_with_chats_own_and_a_cap() -> None:
    for served in (make_served(), None):
        defaults = chat_defaults({}, served)
        assert defaults.options == OWN_DEFAULTS | {"max_tokens": MAX_TOKENS}
        assert "temperature 0.2" in defaults.summary and "chat's defaults" in defaults.summary
        assert "at most 1024 tokens" in defaults.summary and "--max-tokens" in defaults.summary


def test_a_models_defaults_come_first() -> None:
    served = make_served(
        temperature=0.6, max_tokens=200, from_model=("temperature", "max_tokens"), from_override=()
    )
    # They are sent in words, so that they count with --seed too.
    assert chat_defaults({"seed": 1}, served).options == {"temperature": 0.6, "max_tokens": 200}
    assert "the server's defaults" in chat_defaults({}, served).summary


def test_flags_come_before_all() -> None:
    asked = {"temperature": 1.0, "top_p": 0.5, "max_tokens": 7}
    defaults = chat_defaults(asked, make_served())
    assert not defaults.options.keys() & asked.keys()
    greedy = chat_defaults({"temperature": 0.0, "max_tokens": 7}, make_served())
    assert greedy.options == {} and greedy.summary == ""
    assert chat_defaults({"min_tokens": 5000}, None).max_tokens == 5000


def test_a_cap_that_does_not_fit_is_dropped_unless_a_flag_says_it() -> None:
    violation = FieldViolation("sampling_params.max_tokens", "1024 is not allowed")
    refused = RequestError(grpc.StatusCode.INVALID_ARGUMENT, "", violations=(violation,))
    never = RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, "it fits no worker's KV cache")
    busy = RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after_s=1)
    own, given = chat_defaults({}, None), chat_defaults({"max_tokens": 5}, None)
    assert [own.may_be_uncapped(one) for one in (refused, never, busy, None)] == [
        True,
        True,
        False,
        False,
    ]
    assert not any(given.may_be_uncapped(one) for one in (refused, never, busy))


def test_an_answer_that_the_cap_has_ended_is_told_from_others() -> None:
    defaults = chat_defaults({}, None)
    cut = Answer(outputs=[Output(token_ids=[1] * MAX_TOKENS, finish_reason="length")])
    whole = Answer(outputs=[Output(token_ids=[1] * 3, finish_reason="stop")])
    assert defaults.has_ended(cut) and not defaults.has_ended(whole)
