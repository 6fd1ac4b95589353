"""Calls of Nemotron Nano 2, a JSON list in <TOOLCALL>; Nemotron 3 writes them as Qwen3-Coder."""

from signalbox_router.parsers.json_calls import JsonCalls

FORMATS = (
    JsonCalls(
        name="nemotron_json",
        opening=("<TOOLCALL>",),
        end="</TOOLCALL>",
        is_list=True,
        signs=(("<TOOLCALL>",),),
    ),
)
