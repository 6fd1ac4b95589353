"""Finds the session that a client names, such as an agent's, and hashes it for schedulers.

A session is the requests of one name, such as the turns of an agent. Routers with the same API keys
make the same hash. The client's own name for a session goes no further than the router, which keeps
it out of its log.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b

from signalbox_router.limits.api_keys import ApiKey

HEADERS = ("session-id", "x-session-id", "x-claude-code-session-id")
"""Headers that name a session; the first of them counts."""
METADATA_KEY = "session_id"
"""Key of `metadata` that names a session."""
KEY_BYTES = 16
_HEADERS = {name.encode(): place for place, name in enumerate(HEADERS)}
_IN_USER_ID = re.compile(r'(?:_session_|"session_id" ?: ?")([0-9A-Za-z-]{8,64})')


def session_key(name: str, *, tenant: str, key: ApiKey | None) -> bytes:
    """Returns the hash of a session; empty if the client names none.

    Two keys, and two tenants, have different sessions of one name. The digest of the API key is the
    hash's own, so a hash alone says nothing. Without API keys routers share no secret: a hash
    then tells whether a guessed name is right.
    """
    if not name:
        return b""
    owner = tenant.encode()
    return blake2b(
        len(owner).to_bytes(4) + owner + name.encode(),
        digest_size=KEY_BYTES,
        key=b"" if key is None else key.sha256,
        person=b"session",
    ).digest()


def name_in_headers(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the session that headers name; empty if they name none."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _HEADERS and value:
            found.setdefault(name, value)
    return found[min(found, key=_HEADERS.__getitem__)].decode("latin-1") if found else ""


def name_in_user_id(user_id: str) -> str:
    """Returns the session in what Claude Code sends as the id of its user; empty if there is none.

    The id ends with `_session_` and the session's, or is an object as JSON that has a `session_id`.
    The session is the one that its header names.
    """
    found = _IN_USER_ID.search(user_id)
    return found[1] if found is not None else ""
