"""Calls of LFM2, a list as in Python between markers."""

from signalbox_router.parsers.pythonic_calls import PythonicCalls

FORMATS = (
    PythonicCalls(
        name="lfm2",
        opening=("<|tool_call_start|>",),
        end="<|tool_call_end|>",
        signs=(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
    ),
)
