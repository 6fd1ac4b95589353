"""Calls of GLM 4.5 to 5: a name, and a tag for each argument's name and value; those from 4.7 on
are without line breaks."""

from signalbox_router.parsers.tagged_calls import TaggedCalls

_OPENING, _END = "<tool_call>", "</tool_call>"

FORMATS = (
    TaggedCalls(
        name="glm45",
        opening=(_OPENING,),
        end="",
        call=(_OPENING, "\n", _END),
        argument=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        signs=(("</arg_key>\n",), ("</arg_key>\\n",)),
    ),
    TaggedCalls(
        name="glm47",
        opening=(_OPENING,),
        end="",
        call=(_OPENING, "", _END),
        argument=("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
        space="",
        signs=(("<arg_key>",),),
    ),
)
