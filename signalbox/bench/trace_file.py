"""Reads the requests of a file, a JSON object a line, also as OpenAI's batch files have them.

{"timestamp": 0.25, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64} {"prompt":
"Once upon a time", "max_tokens": 16, "temperature": 0} {"custom_id": "a", "method": "POST", "url":
"/v1/completions", "body": {"prompt": [5, 9]}}

The router's log is such a file, if it was written with `--log-format json --log-requests prompts`:
each line "request began" is a request at its time, and other lines are ignored.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from signalbox.bench.workload import BenchRequest
from signalbox.client.named_files import reading

SAMPLING = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop", "n",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos",
    }
)  # fmt: skip
"""Names of parameters that all known endpoints share."""
_LABELS = frozenset({"model", "stream", "stream_options"})
"""Fields that the load itself decides."""
_BEGAN = "request began"
_CALENDAR_S = 1e9
"""Seconds above which a timestamp is since 1970; no run takes that long."""
_BATCH = frozenset({"custom_id", "method", "url", "body"})


class BadLine(ValueError):
    """A line is not a valid request; the message gives the line and the reason."""


def read(path: str) -> list[BenchRequest]:
    """Returns the requests of a file. Raises ValueError."""
    with reading(path, "--replay"):
        text = Path(path).read_text(encoding="utf-8")
    asks = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                content = json.loads(line)
                if not _is_log_line(content):
                    asks.append(_ask(content))
                elif content["message"] == _BEGAN:
                    asks.append(_logged(content))
            except (ValueError, RecursionError) as error:
                raise BadLine(f"--replay {path}, line {number}: {error}") from None
    if not asks:
        raise ValueError(f"--replay {path} has no requests")
    return _from_zero(sorted(asks, key=lambda ask: ask.at_s or 0.0))


def _is_log_line(content: Any) -> bool:
    return isinstance(content, dict) and content.keys() >= {"time", "level", "service", "message"}


def _logged(line: dict[str, Any]) -> BenchRequest:
    """Returns the request of a log line, at the time of its clock."""
    at = datetime.fromisoformat(str(line["time"])).timestamp()
    shown = {name: line[name] for name in ("prompt", "messages") if name in line}
    given = line.get("sampling")
    given = given if isinstance(given, dict) else {}
    sampling = {name: given[name] for name in SAMPLING & given.keys()}
    return _ask({**shown, **sampling, "timestamp": at})


def _from_zero(asks: list[BenchRequest]) -> list[BenchRequest]:
    """Returns the requests with calendar times converted to seconds since the first."""
    first = asks[0].at_s or 0.0
    if first < _CALENDAR_S:
        return asks
    return [replace(ask, at_s=(ask.at_s or 0.0) - first) for ask in asks]


def _ask(content: Any) -> BenchRequest:
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object")
    fields = dict(content)
    at_s = _time(fields.pop("timestamp", None))
    if fields.keys() == _BATCH and isinstance(fields["body"], dict):
        fields = dict(fields["body"])
    fields = {name: value for name, value in fields.items() if name not in _LABELS}
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    prompt, messages = fields.pop("prompt", None), fields.pop("messages", None)
    if unknown := fields.keys() - SAMPLING:
        raise ValueError(f"{min(unknown)} is not replayed")
    if (prompt is None) is (messages is None):
        raise ValueError("expected exactly one of prompt and messages")
    if messages is not None:
        return BenchRequest(messages=_messages(messages), sampling=fields, at_s=at_s)
    return BenchRequest(prompt=_prompt(prompt), sampling=fields, at_s=at_s)


def _time(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("timestamp is not a number of seconds")
    return float(value)


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(one) is int and 0 <= one < 1 << 32 for one in value):
        return value
    raise ValueError("prompt is neither a text nor a list of token ids")


def _messages(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("messages is not a list of messages")
    return tuple(_message(one) for one in value)


def _message(value: Any) -> tuple[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a message is not an object")
    role, content = value.get("role"), value.get("content")
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise ValueError("a message needs a role (system, user, assistant) and a content of text")
    return role, content
