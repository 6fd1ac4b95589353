"""Calls of DeepSeek V3, R1 and V3.1, in JSON after a name; V3 has a code fence around it."""

from signalbox_router.parsers.named_json_calls import NamedJsonCalls

_OPENING = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
_END = "<｜tool▁calls▁end｜>"

FORMATS = (
    NamedJsonCalls(
        name="deepseek_v31",
        opening=_OPENING,
        end=_END,
        call=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        signs=((_OPENING[0],),),
        is_generic=True,  # V3 has the same markers
    ),
    NamedJsonCalls(
        name="deepseek_v3",
        opening=_OPENING,
        end=_END,
        call=(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "\n```json\n",
            "\n```<｜tool▁call▁end｜>",
        ),
        separator="\n",
        signs=((_OPENING[0], "```json"),),
    ),
)
