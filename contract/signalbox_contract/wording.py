"""Numbers of things in sentences that people read."""


def counted(number: int, noun: str) -> str:
    """Returns a number and its noun, as "1 token" or "2048 tokens"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
