"""Writes clients/python/signalbox_client/client.py: the client of aio.py without asyncio.

`make sync-client` runs it; a test compares. Each class, method, docstring and error of the client
thus stands once, in aio.py.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "clients" / "python" / "signalbox_client"
SOURCE, TARGET = FOLDER / "aio.py", FOLDER / "client.py"
HEAD = '''\
"""The client for programs that wait for their answers.

`python -m scripts.sync_client` makes this file of aio.py; change that one.
"""
'''
RULES = (
    (r'\A""".*?"""\n', HEAD),
    (r"\bbelongs to the event loop in which it is made\b", "may be used by several threads"),
    (r"\bin another task\b", "in another thread"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Client|Generator|Iterator|Stream)\b", r"\1"),
    (r"\b__a(enter|exit|iter)__", r"__\1__"),
    (r"\baclosing\b", "closing"),
    (r"\bopen_async\b", "open"),
    (r"\bgrpc\.aio\b", "grpc"),
)
"""What is replaced in aio.py, and by what, in this order."""


def text() -> str:
    """Returns the module that waits."""
    made = SOURCE.read_text("utf-8")
    for pattern, replacement in RULES:
        made = re.sub(pattern, replacement, made, flags=re.DOTALL)
    return made


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
