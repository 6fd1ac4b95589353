"""Tells chat templates whether and how much the model thinks.

Each family of templates has variables and values of its own. A form describes one, and is found by
texts of the template's source. `DEFAULT` is for templates that no form describes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_router.prompt.chat.conversation import Thinking

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The efforts of the APIs, least first."""


class Switch(NamedTuple):
    """The values of a variable that turns thinking on or off."""

    on: object = True
    off: object = False
    adaptive: object = True
    """Value for a model which decides itself; None leaves the variable out."""


_SWITCHES: Mapping[str, Switch] = {"enable_thinking": Switch(), "thinking": Switch()}
"""Qwen, GLM, Nemotron, Gemma and others read the first; DeepSeek, Granite and Kimi the second."""


@dataclass(frozen=True, kw_only=True)
class ThinkingForm:
    """The variables of a family of templates."""

    signs: tuple[str, ...] = ()
    """Texts by which a template shows the form: all of them."""
    effort: str = "reasoning_effort"
    """Variable of the effort."""
    efforts: tuple[str, ...] = ()
    """Efforts that the template knows, least first; empty takes any text, as it is."""
    off: str = ""
    """Value of the effort's variable without thinking; "" leaves the variable out."""
    on: str = ""
    """Its value for thinking of which no effort is given."""
    switches: Mapping[str, Switch] = field(default_factory=dict)
    """Variables beside `_SWITCHES`."""
    budget: str = ""
    """Variable of the most tokens of reasoning, which is 0 without thinking."""

    def variables(self, thinking: Thinking) -> dict[str, Any]:
        """Returns the template's variables. Raises InvalidArgument for an unknown effort."""
        effort, is_enabled = thinking.effort, thinking.is_enabled
        if is_enabled is None and effort is not None:
            is_enabled = effort != "none"
        values = {self.effort: self._effort(effort, is_enabled=is_enabled)}
        if is_enabled is not None:
            for name, switch in {**_SWITCHES, **self.switches}.items():
                chosen = switch.adaptive if thinking.is_adaptive else switch.on
                values[name] = chosen if is_enabled else switch.off
        if self.budget:
            values[self.budget] = 0 if is_enabled is False else thinking.budget
        return {name: value for name, value in values.items() if value is not None}

    def _effort(self, effort: str | None, *, is_enabled: bool | None) -> object:
        if not self.efforts:
            return effort
        if effort is not None and effort not in (*EFFORTS, *self.efforts, self.off):
            allowed = ", ".join(dict.fromkeys((*EFFORTS, *self.efforts)))
            raise InvalidArgument("thinking.effort", effort, allowed)
        if is_enabled is False or effort == self.off:
            return self.off or None
        if effort is None:
            return (self.on if is_enabled else "") or None
        least = EFFORTS.index(effort)
        known = (one for one in self.efforts if EFFORTS.index(one) >= least)
        return next(known, self.efforts[-1])


DEFAULT = ThinkingForm()
FORMS = (
    # GPT-OSS, which always thinks.
    ThinkingForm(
        signs=("reasoning_effort", "<|channel|>"), efforts=("low", "medium", "high"), off="low"
    ),
    # Hunyuan 3, which does not think unless it is told to.
    ThinkingForm(
        signs=("reasoning_effort", "no_think"), efforts=("low", "high"), off="no_think", on="high"
    ),
    # Solar Open, which answers at once with the least efforts, and else thinks with the greatest.
    ThinkingForm(
        signs=("reasoning_effort", '"minimal"'),
        efforts=("minimal", "low", "medium", "high"),
        off="minimal",
    ),
    # DeepSeek V4, which has instructions for the greatest efforts alone.
    ThinkingForm(signs=("reasoning_effort == 'max'",), efforts=("low", "medium", "high", "max")),
    # Kimi K3
    ThinkingForm(
        signs=("thinking_effort",), effort="thinking_effort", efforts=("low", "high", "max")
    ),
    # Cohere's mixture of experts
    ThinkingForm(
        signs=("reasoning if reasoning is not undefined",), switches={"reasoning": Switch()}
    ),
    # MiniMax M3
    ThinkingForm(
        signs=('thinking_mode == "adaptive"',),
        switches={"thinking_mode": Switch("enabled", "disabled", "adaptive")},
    ),
    # Seed-OSS
    ThinkingForm(signs=("thinking_budget", "seed:"), budget="thinking_budget"),
)


def form_of(template: str) -> ThinkingForm:
    """Returns the form of a template."""
    found = (form for form in FORMS if all(sign in template for sign in form.signs))
    return next(found, DEFAULT)
