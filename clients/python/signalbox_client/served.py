"""The served models, the router's load, and a model's tokens, as plain values."""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from signalbox_protos.inference.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultSamplingParams:
    """Sampling parameters of a request that sets none; see inference.proto."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int | None
    """None if only the window bounds a request."""
    from_model: tuple[str, ...]
    from_override: tuple[str, ...]


ModelState = Literal["", "unloaded", "waiting", "loading", "loaded", "draining", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A served model."""

    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    has_chat_template: bool
    default_sampling_params: DefaultSamplingParams | None
    """Defaults of the server; None if the server does not report them."""
    effective_max_model_len: int
    """Longest sequence that the KV cache holds, in tokens; at most max_model_len."""
    aliases: tuple[str, ...] = ()
    """Other names that requests may use."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters, each of which is a model that requests may name."""
    task: Literal["generate", "embed", "classify", "token_embed"] = "generate"
    """Task of the model: a continuation, an embedding, classes, or a vector of each token."""
    num_outputs: int = 0
    """Elements of a vector, or classes; 0 if the model generates."""
    dimensions: tuple[int, ...] = ()
    """Lengths to which an embedding may be shortened; empty if it may not."""
    prompts: tuple[str, ...] = ()
    """Names of the prompts that may be put before a text to embed."""
    state: ModelState = ""
    """State of a model of a server that loads models when requests name them; empty elsewhere.

    What is known of one that is not loaded is its name, architecture, task and max_model_len.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a router and of the workers behind it; see inference.proto."""

    num_live_requests: int
    max_live_requests: int
    num_waiting_requests: int
    num_running_requests: int
    num_swapped_requests: int
    num_workers: int
    num_kv_blocks: int
    num_used_kv_blocks: int


class Token(NamedTuple):
    """A token of a model."""

    id: int
    text: str


_TASKS: dict[int, Literal["generate", "embed", "classify", "token_embed"]] = {
    pb.POOLING_TASK_UNSPECIFIED: "generate",
    pb.POOLING_TASK_EMBED: "embed",
    pb.POOLING_TASK_CLASSIFY: "classify",
    pb.POOLING_TASK_TOKEN_EMBED: "token_embed",
}
_STATES: dict[int, ModelState] = {
    pb.MODEL_STATE_UNSPECIFIED: "",
    pb.MODEL_STATE_UNLOADED: "unloaded",
    pb.MODEL_STATE_WAITING: "waiting",
    pb.MODEL_STATE_LOADING: "loading",
    pb.MODEL_STATE_LOADED: "loaded",
    pb.MODEL_STATE_DRAINING: "draining",
    pb.MODEL_STATE_FAILED: "failed",
}


def read_model(message: pb.GetModelResponse) -> Model:
    pooling = message.pooling
    of_tokens = pooling.task == pb.POOLING_TASK_TOKEN_EMBED
    return Model(
        name=message.name,
        architecture=message.architecture,
        dtype=message.dtype,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        has_chat_template=message.has_chat_template,
        default_sampling_params=_read_defaults(message),
        effective_max_model_len=message.effective_max_model_len or message.max_model_len,
        aliases=tuple(message.aliases),
        adapters=tuple(message.adapters),
        task=_TASKS[pooling.task],
        num_outputs=pooling.num_token_outputs if of_tokens else pooling.num_outputs,
        dimensions=tuple(pooling.dimensions),
        prompts=tuple(sorted(pooling.prompts)),
        state=_STATES.get(message.state, ""),
    )


def _read_defaults(message: pb.GetModelResponse) -> DefaultSamplingParams | None:
    if not message.HasField("default_sampling_params"):
        return None
    defaults = message.default_sampling_params
    return DefaultSamplingParams(
        temperature=_shortest(defaults.temperature),
        top_p=_shortest(defaults.top_p),
        top_k=defaults.top_k,
        min_p=_shortest(defaults.min_p),
        repetition_penalty=_shortest(defaults.repetition_penalty),
        max_tokens=defaults.max_tokens if defaults.HasField("max_tokens") else None,
        from_model=tuple(defaults.from_model),
        from_override=tuple(defaults.from_override),
    )


def _shortest(number: float) -> float:
    """Returns the decimal number of a float32: 0.6, not 0.6000000238418579."""
    return float(f"{number:.7g}")


def read_load(message: pb.GetLoadResponse) -> Load:
    return Load(**{field.name: getattr(message, field.name) for field in fields(Load)})


def read_tokens(message: pb.TokenizeResponse) -> list[Token]:
    return [Token(*pair) for pair in zip(message.token_ids, message.texts, strict=True)]
