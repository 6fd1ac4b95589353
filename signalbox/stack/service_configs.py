"""Makes the services' configuration objects from settings. It imports no service's code."""

import hashlib
import re

from gpu_worker.worker_settings import WorkerSettings
from router.config import LoggedRequests, RouterConfig
from router.prompt.known_templates import load_chat_template
from router.router_settings import RouterSettings
from rpc.http.port_limits import HttpLimits
from rpc.limits.call_bounds import CallBounds
from rpc.settings.service_settings import (
    flag_name,
)
from rpc.transport.tls import is_loopback
from signalbox.settings.serve_settings import ServeSettings
from signalbox.version import VERSION

_FIELDS = {*ServeSettings.model_fields, *WorkerSettings.model_fields}
_NAMES = "|".join(sorted((name for name in _FIELDS if "_" in name), key=len, reverse=True))
# A name of one word counts as a field only at a message's start: "device is 'cuda', but".
_FIELD = re.compile(rf"(?<![\w-])(?:{_NAMES})(?!\w)|\A(?:device|dtype|quantization)(?= is )")


def in_words_of_flags(message: str) -> str:
    """Returns a service's message with field names replaced by flags."""
    return _FIELD.sub(lambda found: flag_name(found[0]), message)


def router_config(settings: RouterSettings) -> RouterConfig:
    return RouterConfig(
        host=settings.host,
        port=settings.grpc_port,
        http_port=settings.http_port if settings.http else None,
        metrics_sources=_sources(settings.metrics_sources),
        allowed_origins=_names(settings.allowed_origins),
        allowed_hosts=_names(settings.allowed_hosts),
        http_limits=HttpLimits(
            max_connections=settings.max_http_connections,
            max_connections_per_address=settings.max_http_connections_per_address,
            min_body_rate=settings.min_http_body_rate,
        ),
        grpc_bounds=CallBounds(
            max_connections=settings.max_grpc_connections,
            max_streams=settings.max_grpc_streams,
            request_timeout_s=settings.grpc_request_timeout,
        ),
        refuses_unknown_fields=settings.unknown_fields == "refuse",
        version=VERSION,
        scheduler_addresses=_names(settings.scheduler),
        resume_wait_s=settings.resume_wait,
        client_stall_timeout_s=settings.client_stall_timeout,
        reflection=(
            is_loopback(settings.host) if settings.reflection is None else settings.reflection
        ),
        grace_s=settings.drain_timeout,
        max_live_requests=settings.max_live_requests,
        seed=settings.seed,
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
        chat_template=(
            None if settings.chat_template is None else load_chat_template(settings.chat_template)
        ),
        disable_additional_properties=settings.disable_additional_properties,
        max_grammar_cpu_s=settings.max_grammar_cpu,
        max_grammar_bytes=settings.max_grammar_memory << 20,
        trust_tenant_header=settings.trust_tenant_header,
        api_keys=settings.api_keys,
        api_key_digests=tuple(
            hashlib.sha256(key.get_secret_value().encode()).digest() for key in settings.api_key
        ),
        metrics=settings.metrics,
        logged_requests=LoggedRequests(settings.log_requests),
        model_names=settings.served_model_name,
        tls=settings.tls,
    )


def _sources(text: str | None) -> dict[str, str]:
    """Returns the sockets of NAME=SOCKET,... by name."""
    pairs = [one.partition("=") for one in _names(text)]
    return {name: socket for name, _, socket in pairs}


def _names(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())
