"""Limits of an HTTP port: connections, bytes of a head, and times.

Limits that depend on the kind of clients are settings. The others are constants, larger than any
honest client needs.
"""

from dataclasses import dataclass

from signalbox_rpc.limits.open_files import open_files_limit

READ_BYTES = 16 << 10
"""Bytes of one read. A parser may spend 1 us on each byte (chunks of one byte) while all other
requests of the process wait."""
MAX_READ_AHEAD_BYTES = 32 << 10
"""Bytes behind the request that is being answered. What a client sends beyond, it sends again."""
MAX_DISCARDED_BYTES = 16 << 20
"""Bytes that a client may yet send after the last request that is taken: more than sockets hold."""
MAX_HEADERS = 256
"""Most headers of a request. Browsers, proxies and SDKs send fewer than 50; a parser and an
application spend time on each header, even a short one."""
MAX_HEAD_BYTES = 32 << 10
"""Bytes of a request line and headers: twice uvicorn's own limit for a head in several pieces."""
HEAD_S = 60.0
"""Seconds for a request line and headers to arrive; gRPC allows its clients the same."""
FRAMING_BYTES = 256 << 10
"""Bytes of chunk sizes, extensions and trailers of a body, beyond as many as the body has. So
chunks of one byte carry 50,000 bytes, and chunks of six any body."""
BODY_GRACE_S = 20.0
"""Seconds that a body may lag behind the least rate; bytes that came early do not extend it."""
MAX_UNFINISHED_BYTES = 192 << 20
"""Bytes of incomplete bodies, over all clients; the largest body has 8 MiB."""
TLS_HANDSHAKE_S = 10.0
"""Seconds for a TLS handshake, which takes two round trips."""
LINGER_S = 1.0
"""Seconds for a client to read the error after which its connection is closed."""
UNREAD_S = 60.0
"""Seconds in which a client must read some bytes of an answer that is completely written."""
SHARE_OF_FILES = 0.5
"""Share of the process's open files for the connections of one port. The rest is for gRPC's
connections, pipes, tokenizers and log files."""
MAX_PIPELINED = 64
"""Requests of one connection that are parsed and not answered, if httptools parses: it parses all
that one read brings. A client that sends more at once sends the rest again on a new connection
(RFC 9112, 9.3.2)."""
METRICS_CONNECTIONS = 64
"""Connections of a metrics port, which few scrapers read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of one port."""

    max_connections: int = 8192
    """Most connections of all clients; fewer if the process may open few files."""
    max_connections_per_address: int | None = None
    """Most connections of one client's address, which may be a proxy with many clients; None is no
    limit."""
    min_body_rate: float = 500.0
    """Least bytes a second of a body, which may lag by BODY_GRACE_S; 0 is no limit."""

    def slots(self) -> int:
        """Returns the number of connections that the port accepts in this process."""
        return max(1, min(self.max_connections, int(open_files_limit() * SHARE_OF_FILES)))


NORMAL = HttpLimits()
OF_METRICS = HttpLimits(max_connections=METRICS_CONNECTIONS)
