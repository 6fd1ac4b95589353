"""Chooses the sampling parameters of `signalbox chat` that no flag sets, and describes them.

The served model's defaults from `GetModel` come first. Without any, tokens would be sampled at
temperature 1 up to the end of the window, which gives poor text with small models; so a chat has
defaults of its own, and always a limit of tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import grpc

from signalbox_client import Answer, DefaultSamplingParams, RequestError
from signalbox_contract.sampling_params import GREEDY_BELOW
from signalbox_contract.wording import counted

OWN_DEFAULTS = {"temperature": 0.2, "top_p": 0.9, "frequency_penalty": 0.2}
"""Defaults for models without their own: close to the most likely text. The penalty ends the
loops of small models: of 16 answers of SmolLM2-135M to 4 questions, 7 had not ended after 512
tokens without it, and none with it."""
MAX_TOKENS = 1024
"""Maximum tokens of an answer, for models without a default max_tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDefaults:
    """Parameters that no flag sets, as arguments of the client's calls."""

    drawing: Mapping[str, float]
    """Sampling parameters, without those that a flag sets."""
    is_servers: bool
    """True if `drawing` equals the server's defaults."""
    max_tokens: int | None
    """Maximum tokens of an answer; None if a flag sets it."""

    @property
    def options(self) -> dict[str, Any]:
        """All parameters, as arguments of the client's calls."""
        cap = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return {**self.drawing, **cap}

    @property
    def summary(self) -> str:
        """Returns the parameters in one line; "" if there are none."""
        names = [*self.drawing, *(() if self.max_tokens is None else ("max_tokens",))]
        if not names:
            return ""
        parts = [f"{name} {value:g}" for name, value in self.drawing.items()]
        if parts:
            parts[-1] += f" ({'the server' if self.is_servers else 'chat'}'s defaults)"
        if self.max_tokens is not None:
            parts.append(f"at most {counted(self.max_tokens, 'token')}")
        flags = ", ".join("--" + name.replace("_", "-") for name in names)
        return f"{', '.join(parts)}; to change it: {flags}"

    def may_be_uncapped(self, cause: object) -> bool:
        """Returns whether a request was refused because the window has fewer tokens left than
        the limit.

        Without the limit such an answer ends at the end of the window.
        """
        if self.max_tokens is None or not isinstance(cause, RequestError):
            return False
        never_fits = cause.code is grpc.StatusCode.RESOURCE_EXHAUSTED and not cause.retry_after_s
        return never_fits or any(
            violation.field == "sampling_params.max_tokens" for violation in cause.violations
        )

    def has_ended(self, answer: Answer) -> bool:
        """Returns whether the limit has ended an answer."""
        return any(len(output.token_ids) == self.max_tokens for output in answer.outputs)


def chat_defaults(asked: Mapping[str, Any], served: DefaultSamplingParams | None) -> ChatDefaults:
    """Returns the defaults.

    Args:
        asked: values of flags, as arguments of the client's calls.
        served: the server's defaults; None if it does not report them.
    """
    told = () if served is None else (*served.from_model, *served.from_override)
    names = [one.name for one in fields(DefaultSamplingParams) if one.name in told]
    of_server = {name: getattr(served, name) for name in names if name != "max_tokens"}
    # A greedy request needs no other parameters.
    is_greedy = asked.get("temperature", 1.0) < GREEDY_BELOW
    chosen = {} if is_greedy else of_server or OWN_DEFAULTS
    cap = None
    if "max_tokens" not in asked:
        cap = max((served and served.max_tokens) or MAX_TOKENS, asked.get("min_tokens", 0))
    return ChatDefaults(
        drawing={name: value for name, value in chosen.items() if name not in asked},
        is_servers=bool(of_server),
        max_tokens=cap,
    )
