"""Calls of Mistral's models, after [TOOL_CALLS]."""

import secrets

from signalbox_router.parsers.json_calls import JsonCalls


def make_id_of_nine() -> str:
    """Returns an id of nine characters: Mistral's templates refuse those of any other length."""
    return secrets.token_hex(5)[:9]


FORMATS = (
    JsonCalls(
        name="mistral",
        opening=("[TOOL_CALLS]",),
        arguments_marker="[ARGS]",
        is_list=True,
        signs=(("[TOOL_CALLS]",),),
        make_id=make_id_of_nine,
    ),
)
