"""Opens channels with keepalive that notices a lost peer, quick reconnects and no proxy."""

import grpc

from signalbox_rpc.transport.tls import CLEAR, TlsConfig, channel_credentials

PING_AFTER_S, PING_TIMEOUT_S = 5.0, 10.0
"""Silence of a connection with a call after which a ping is sent, and silence after that which ends
the connection. gRPC's timers take a pause of this process for silence of the peer, and end a stream
before what has come is read, so a stream that has to end sooner has signs of life of its own."""

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", int(PING_AFTER_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(PING_TIMEOUT_S * 1000)),
    # Without it a stopped peer is noticed after a minute, whatever the keepalive says.
    ("grpc.http2.ping_timeout_ms", int(PING_TIMEOUT_S * 1000)),
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
    address: str, *, tls: TlsConfig = CLEAR, server_name: str | None = None
) -> grpc.aio.Channel:
    """Returns a channel to "host:port"; it connects when first used and reconnects by itself.

    Args:
        server_name: what the server's certificate must be for, if not the address's host.

    Raises TlsError.
    """
    if not tls.dials:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=[*_OPTIONS, *named])
