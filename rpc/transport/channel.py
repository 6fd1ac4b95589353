"""Opens channels with keepalive that notices a stopped peer, quick reconnects and no proxy."""

import grpc

from rpc.transport.tls import CLEAR, TlsConfig, channel_credentials

PING_TIMEOUT_S = 1.5
LEASED_PING_TIMEOUT_S = 10.0
"""Timeout of pings on the streams of a lease, whose heartbeats say whether the peer lives. gRPC's
timers take a pause of this process for silence of the peer, and end a stream before what has come
is read."""

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # gRPC shares connections between channels, and keeps one that no longer answers after its
    # channel was closed; a channel that is opened in place of another must not get it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", -1),
    # Services talk to each other directly; an http_proxy of the environment is for the web.
    ("grpc.enable_http_proxy", 0),
)


def open_channel(
    address: str,
    *,
    tls: TlsConfig = CLEAR,
    server_name: str | None = None,
    ping_timeout_s: float = PING_TIMEOUT_S,
) -> grpc.aio.Channel:
    """Returns a channel to "host:port"; it connects when first used and reconnects by itself.

    Args:
        server_name: what the server's certificate must be for, if not the address's host.
        ping_timeout_s: silence after a ping that ends the connection. Pings are sent after each
            second of silence.

    Raises TlsError.
    """
    timeout_ms = int(ping_timeout_s * 1000)
    # Without the second a stopped peer is noticed after a minute, whatever the first says.
    pings = ("grpc.keepalive_timeout_ms", timeout_ms), ("grpc.http2.ping_timeout_ms", timeout_ms)
    options = [*_OPTIONS, *pings]
    if not tls.dials:
        return grpc.aio.insecure_channel(address, options=options)
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)
