"""Calls of Kimi K2, in JSON after an id that has the name and the number of the call."""

from signalbox_router.parsers.named_json_calls import NamedJsonCalls

FORMATS = (
    NamedJsonCalls(
        name="kimi_k2",
        opening=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        end="<|tool_calls_section_end|>",
        call=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        prefix="functions.",
        is_numbered=True,
        signs=(("<|tool_calls_section_begin|>",),),
    ),
)
