"""Writes the cause of a broken prefix into the fields that the APIs have for it.

An API names what a client may change. Any other cause is `unavailable` there, and `cause` names it:
one of `PrefixCause` in small letters, beside all answers with a cause.
"""

from typing import Any

from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison

Json = dict[str, Any]
_UNAVAILABLE = "unavailable"
MESSAGES_TYPES = {
    PrefixCause.MODEL_CHANGED: "model_changed",
    PrefixCause.SYSTEM_CHANGED: "system_changed",
    PrefixCause.TOOLS_CHANGED: "tools_changed",
    PrefixCause.MESSAGE_CHANGED: "messages_changed",
    PrefixCause.ANSWER_CHANGED: "messages_changed",
    PrefixCause.REASONING_LEFT_OUT: "messages_changed",
}
"""Types of Anthropic's cache_miss_reason."""
RESPONSES_REASONS = {
    PrefixCause.MODEL_CHANGED: "model_changed",
    PrefixCause.SYSTEM_CHANGED: "input_changed",
    PrefixCause.TOOLS_CHANGED: "tools_changed",
    PrefixCause.MESSAGE_CHANGED: "input_changed",
    PrefixCause.ANSWER_CHANGED: "input_changed",
    PrefixCause.REASONING_LEFT_OUT: "input_changed",
    PrefixCause.SETTINGS_CHANGED: "reasoning_effort_changed",
}
"""Reasons of OpenAI's prompt_cache_diagnostics. Of the settings there the prompt has the effort
alone."""


def of_message(found: PrefixComparison | None) -> Json | None:
    """Returns `diagnostics` of an answer of the Messages API; None if nothing broke."""
    if found is None or found.cause is PrefixCause.UNCHANGED:
        return None
    if found.cause is PrefixCause.NOT_FOUND:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    kind = MESSAGES_TYPES.get(found.cause, _UNAVAILABLE)
    lost = {"cache_missed_input_tokens": found.num_lost_tokens}
    return {"cache_miss_reason": {"type": kind, **lost, **_details(found)}}


def of_response(found: PrefixComparison | None) -> Json:
    """Returns `prompt_cache_diagnostics` of an answer of the Responses API."""
    if found is None:
        return {"type": _UNAVAILABLE}
    if found.cause is PrefixCause.UNCHANGED:
        return {"type": "cache_hit"}
    if found.cause is PrefixCause.NOT_FOUND:
        return {"type": "comparison_response_not_found"}
    reason = RESPONSES_REASONS.get(found.cause)
    kind = {"type": _UNAVAILABLE} if reason is None else {"type": "cache_miss", "reason": reason}
    return {
        **kind,
        "cache_missed_tokens": found.num_lost_tokens,
        "comparison_reusable_tokens": found.num_kept_tokens + found.num_lost_tokens,
        **_details(found),
    }


def _details(found: PrefixComparison) -> Json:
    """Returns fields that the APIs do not have: the cause, and where it is."""
    details: Json = {"cause": found.cause.name.lower(), "position": found.num_kept_tokens}
    return details | ({"path": found.path} if found.path else {})
