"""Calls of Qwen3-Coder, Qwen3.5, Nemotron 3 and Step 3.5, in tags with a value in lines of its own;
and of Seed-OSS, which has it in the line of its tags."""

from signalbox_router.parsers.tagged_calls import TaggedCalls

_CALL = ("<function=", ">\n", "</function>")

FORMATS = (
    TaggedCalls(
        name="qwen3_coder",
        aliases=("qwen3_xml", "step3p5"),
        opening=("<tool_call>", "<function="),
        end="</tool_call>",
        call=_CALL,
        argument=("<parameter=", ">\n", "\n</parameter>\n"),
        signs=(("<tool_call>", "<function=", "<parameter="),),
    ),
    TaggedCalls(
        name="seed_oss",
        opening=("<seed:tool_call>",),
        end="</seed:tool_call>",
        call=_CALL,
        argument=("<parameter=", ">", "</parameter>\n"),
        signs=(("<seed:tool_call>",),),
    ),
)
