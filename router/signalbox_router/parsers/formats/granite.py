"""Calls of Granite 3, a JSON list after a marker that is a token in 3.0 and text in later ones.

Granite 4 writes them as Hermes does.
"""

from signalbox_router.parsers.json_calls import JsonCalls

FORMATS = (
    JsonCalls(
        name="granite",
        opening=("<|tool_call|>", "<tool_call>"),
        is_list=True,
        signs=(("<|tool_call|>", "<|start_of_role|>"),),
    ),
)
