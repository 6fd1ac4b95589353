"""Calls of Salesforce's xLAM, a JSON list without a marker or in <tool_call>, chosen by its name:
the models have the templates of what they were trained from."""

from signalbox_router.parsers.json_calls import JsonCalls

FORMATS = (
    JsonCalls(
        name="xlam",
        opening=("<tool_call>",),
        end="</tool_call>",
        is_bare=True,
        is_list=True,
    ),
)
