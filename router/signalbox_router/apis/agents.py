"""What the APIs of agents share: reasoning that clients keep, and tools that are left out.

A client sends the reasoning of earlier answers back in a field that only the server reads. Here
that is the text itself in an encoding without a key, so any router reads it, after any restart.
"""

import base64
import zlib
from collections.abc import Sequence

from signalbox_router.apis.openai.bodies.unknown_fields import escaped, named

OMITTED_HEADER = "x-signalbox-omitted-tools"
"""Header that lists the tools that were offered and that the model was not told of."""
_PREFIX = "sb1-"
_SUM_BYTES = 4


def encode_reasoning(text: str) -> str:
    """Returns a text of ASCII that `decode_reasoning` reads; a third longer."""
    content = text.encode("utf-8", "replace")
    summed = zlib.crc32(content).to_bytes(_SUM_BYTES) + content
    return _PREFIX + base64.urlsafe_b64encode(summed).decode()


def decode_reasoning(encoded: str) -> str | None:
    """Returns the reasoning; None if another server has encoded it, or it is damaged."""
    if not encoded.startswith(_PREFIX):
        return None
    try:
        summed = base64.b64decode(encoded.removeprefix(_PREFIX), b"-_", validate=True)
        content = summed[_SUM_BYTES:]
        is_whole = summed[:_SUM_BYTES] == zlib.crc32(content).to_bytes(_SUM_BYTES)
        return content.decode() if is_whole else None
    except ValueError:
        return None


def omitted_text(names: Sequence[str]) -> str:
    """Returns the names of tools that were left out as one text, which a header can hold."""
    return named([escaped(name) for name in names])


def omitted_header(names: Sequence[str]) -> dict[str, str]:
    """Returns the header that names the tools that were left out; empty if there are none."""
    return {OMITTED_HEADER: omitted_text(names)} if names else {}
