"""Calls of MiniMax M2, in tags with a value in the line of its own."""

from signalbox_router.parsers.tagged_calls import TaggedCalls

FORMATS = (
    TaggedCalls(
        name="minimax_m2",
        opening=("<minimax:tool_call>",),
        end="</minimax:tool_call>",
        call=('<invoke name="', '">\n', "</invoke>"),
        argument=('<parameter name="', '">', "</parameter>\n"),
        is_group=True,
        signs=(("<minimax:tool_call>",),),
    ),
)
