"""Calls of the Llama 3 and 4 models, in JSON."""

from signalbox_router.parsers.json_calls import JsonCalls

FORMATS = (
    JsonCalls(
        name="llama3_json",
        opening=("<|python_tag|>",),
        is_bare=True,
        arguments_key="parameters",
        separators=";",
        # Llama 3.2's template does not mention the tag.
        signs=(("<|python_tag|>",), ("<|start_header_id|>",)),
        is_generic=True,
    ),
    JsonCalls(
        name="llama4_json",
        opening=("<|python_start|>",),
        end="<|python_end|>",
        is_bare=True,
        arguments_key="parameters",
        separators=";",
        signs=(("<|python_start|>",), ("<|header_start|>",)),
        is_generic=True,
    ),
)
