"""Opens channels: keepalive that notices a stopped peer, quick reconnects, no proxy."""

import grpc

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


def open_channel(address: str) -> grpc.aio.Channel:
    """Returns a channel to "host:port"; it connects when first used and reconnects by itself."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)
