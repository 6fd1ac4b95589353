"""Calls of the Hermes and Qwen models, in <tool_call>."""

from signalbox_router.parsers.json_calls import JsonCalls

FORMATS = (
    JsonCalls(
        name="hermes",
        opening=("<tool_call>",),
        end="</tool_call>",
        space="\n",
        signs=(("<tool_call>",),),
        is_generic=True,
    ),
)
