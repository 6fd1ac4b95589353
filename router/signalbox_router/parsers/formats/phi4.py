"""Calls of Phi-4-mini, a JSON list between its own markers, or after the word that vLLM's template
asks for."""

from signalbox_router.parsers.json_calls import JsonCalls

FORMATS = (
    JsonCalls(
        name="phi4_mini_json",
        opening=("<|tool_call|>", "functools["),
        end="<|/tool_call|>",
        is_list=True,
        signs=(("<|tool|>", "<|/tool|>"), ("functools[",)),
    ),
)
