"""Text of peers for terminals and logs; without imports, for commands that start quickly."""


def printable(message: str) -> str:
    """Escapes control characters that a peer may have sent: they could move a terminal's
    cursor."""
    if message.isprintable():
        return message
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in message
    )
