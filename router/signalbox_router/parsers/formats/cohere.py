"""Calls of Cohere's Command, a JSON list between markers, with a number of each."""

from signalbox_router.parsers.json_calls import JsonCalls

FORMATS = (
    JsonCalls(
        name="cohere_command3",
        opening=("<|START_ACTION|>",),
        end="<|END_ACTION|>",
        name_key="tool_name",
        arguments_key="parameters",
        number_key="tool_call_id",
        is_list=True,
        signs=(("<|START_ACTION|>",),),
    ),
)
