"""Which variables of a template say how much the model thinks."""

from typing import Any

import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_router.prompt.chat.conversation import Thinking
from signalbox_router.prompt.chat.thinking_form import EFFORTS, FORMS, form_of

BOTH = ("enable_thinking", "thinking")
"""Variables that all templates get."""
GPT_OSS = '<|channel|>{{ "Reasoning: " + reasoning_effort }}'
HUNYUAN = "{%- if reasoning_effort not in ['high', 'low', 'no_think'] %}"
SOLAR = '{%- if reasoning_effort in ["low", "minimal"] -%}'
DEEPSEEK_V4 = "{%- if thinking and reasoning_effort == 'max' -%}"
KIMI_K3 = "{%- if thinking and thinking_effort not in ['low', 'high', 'max'] -%}"
COHERE = "{%- set reasoning = reasoning if reasoning is not undefined else true -%}"
MINIMAX_M3 = '{%- if thinking_mode == "adaptive" -%}'
SEED = "<seed:think>{%- if thinking_budget == 0 %}"
QWEN = "{%- if enable_thinking is defined and enable_thinking is false %}"
SWITCHED = Thinking(is_enabled=True)
OFF = Thinking(is_enabled=False)
ADAPTIVE = Thinking(is_enabled=True, is_adaptive=True)


def at(effort: str) -> Thinking:
    return Thinking(effort=effort)


@pytest.mark.parametrize(
    ("template", "efforts"),
    [
        (GPT_OSS, "low low low medium high high high"),
        (HUNYUAN, "no_think low low high high high high"),
        (SOLAR, "minimal minimal low medium high high high"),
        (DEEPSEEK_V4, "- low low medium high max max"),
        (KIMI_K3, "- low low high high max max"),
        (QWEN, "none minimal low medium high xhigh max"),
    ],
)
def test_an_effort_is_one_that_the_template_knows(template: str, efforts: str) -> None:
    form = form_of(template)
    for effort, expected in zip(EFFORTS, efforts.split(), strict=True):
        found = form.variables(at(effort))
        assert found.pop(form.effort, "-") == expected
        assert found == dict.fromkeys(BOTH, effort != "none")


@pytest.mark.parametrize(
    ("template", "thinking", "expected"),
    [
        (GPT_OSS, OFF, {"reasoning_effort": "low"}),
        (GPT_OSS, SWITCHED, {}),
        (HUNYUAN, SWITCHED, {"reasoning_effort": "high"}),
        (HUNYUAN, at("no_think"), {"reasoning_effort": "no_think"}),
        (SOLAR, OFF._replace(effort="high"), {"reasoning_effort": "minimal"}),
        (QWEN, OFF._replace(effort="low"), {"reasoning_effort": "low"}),
        (QWEN, at("utmost"), {"reasoning_effort": "utmost"}),
        (COHERE, at("none"), {"reasoning_effort": "none", "reasoning": False}),
        (MINIMAX_M3, SWITCHED, {"thinking_mode": "enabled"}),
        (MINIMAX_M3, ADAPTIVE, {"thinking_mode": "adaptive"}),
        (MINIMAX_M3, OFF, {"thinking_mode": "disabled"}),
        (SEED, OFF, {"thinking_budget": 0}),
        (SEED, SWITCHED._replace(budget=512), {"thinking_budget": 512}),
        (SEED, Thinking(), {}),
    ],
)
def test_thinking_is_turned_on_and_off_by_the_templates_variables(
    template: str, thinking: Thinking, expected: dict[str, Any]
) -> None:
    found = form_of(template).variables(thinking)
    assert {name: value for name, value in found.items() if name not in BOTH} == expected


def test_an_effort_that_nothing_fits_is_refused_by_name() -> None:
    for form in FORMS:
        if form.efforts:
            with pytest.raises(InvalidArgument, match=r"thinking\.effort"):
                form.variables(at("utmost"))
