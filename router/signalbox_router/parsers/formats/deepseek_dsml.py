"""Calls of DeepSeek V3.2 and V4, in tags that say of each value whether it is a text or JSON."""

from signalbox_router.parsers.tagged_calls import TaggedCalls

_TOKEN = "｜DSML｜"


def _format(name: str, word: str) -> TaggedCalls:
    opening = f"<{_TOKEN}{word}>"
    return TaggedCalls(
        name=name,
        opening=(opening,),
        end=f"</{_TOKEN}{word}>",
        call=(f'<{_TOKEN}invoke name="', '">\n', f"</{_TOKEN}invoke>"),
        argument=(f'<{_TOKEN}parameter name="', '" string="', f"</{_TOKEN}parameter>\n"),
        kinds=('true">', 'false">'),
        token=_TOKEN,
        is_group=True,
        signs=((_TOKEN, f"{word}>"),),
    )


FORMATS = (_format("deepseek_v32", "function_calls"), _format("deepseek_v4", "tool_calls"))
