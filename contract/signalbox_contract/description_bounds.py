"""Bounds what a peer says of itself before it is kept, shown and logged.

A message may have 64 MiB. Descriptions of models, workers and launchers are kept while the peer is
there, and each operator who asks gets them.
"""

from google.protobuf.message import Message

MAX_TEXT_CHARS = 4096
MAX_ITEMS = 4096


def check_description(message: Message) -> None:
    """Raises ValueError that names the first field with a text too long, or too many items."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if len(values) > MAX_ITEMS:
            raise ValueError(f"{field.name} has {len(values)} items; at most {MAX_ITEMS} are read")
        for one in values:
            if isinstance(one, Message):
                check_description(one)
            elif isinstance(one, str | bytes) and len(one) > MAX_TEXT_CHARS:
                raise ValueError(
                    f"{field.name} has {len(one)} characters; at most {MAX_TEXT_CHARS} are read"
                )
