"""Sets what a body says of the prompt cache: its session, and how long its prefix is needed."""

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.openai.requests.types import GenerationBody
from signalbox_router.requests.session_key import METADATA_KEY

_SECONDS = {"m": 60, "h": 3600}


def set_session(request: pb.GenerateRequest | pb.ChatRequest, body: GenerationBody) -> None:
    request.session = body.prompt_cache_key or (body.metadata or {}).get(METADATA_KEY, "")
    options = body.prompt_cache_options
    if options is not None and options.ttl is not None:
        request.prefix_ttl.seconds = seconds_of(options.ttl)
    elif body.prompt_cache_retention == "24h":
        request.prefix_ttl.seconds = seconds_of(body.prompt_cache_retention)


def seconds_of(ttl: str) -> int:
    """Returns the seconds of a time such as `30m` or `1h`."""
    return int(ttl[:-1]) * _SECONDS[ttl[-1]]
