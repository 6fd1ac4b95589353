"""Opens channels with keepalive that notices a stopped peer, quick reconnects and no proxy."""

import grpc

from rpc.transport.tls import CLEAR, TlsConfig, channel_credentials

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 1_500),
    # Without it a stopped peer is noticed after a minute, whatever the keepalive says.
    ("grpc.http2.ping_timeout_ms", 1_500),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
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
