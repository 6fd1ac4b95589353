"""Names and shapes of the tensors that make up a decoder of the Llama family."""

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints.kv_scales import is_attention_scale
from signalbox_worker.models.decoder_config import DecoderConfig, LatentSizes
from signalbox_worker.models.gemma4_config import Gemma4Config
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.models.recurrence import DeltaRule, Mamba2, Recurrence

Shape = tuple[int, ...]

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm", "lm_head.weight"
ATTENTION_NORM = "input_layernorm"
"""Norm of what attention reads, within its layer."""
EXPERTS, ROUTER, ROUTER_BIAS = "experts", "gate.weight", "gate.bias"
"""Prefix of the names of experts within a mixture; the product that scores experts."""
CHOICE_BIAS = "gate.e_score_correction_bias"
"""Vector that is added to the shares to choose by."""
SHARED_GATE = "shared_expert_gate.weight"
"""Matrix whose product is the score of the expert that all tokens have."""
RECURRENT = "recurrent"
"""Prefix of the names of a recurrent layer's tensors within it."""
SINKS = "self_attn.sinks"
"""Vector of a score for each head."""
GATED_PARTS = ("query", "gate")
"""Parts of the matrix of gated queries, of which each head has the one before the other."""
_OF_LATENTS = tuple(f".{name}_proj.weight" for name in ("q", "q_a", "q_b", "kv_b"))
"""Matrices that products read in parts."""
CLASSIFIER = "score.weight"
"""Head of a model that makes scores of classes."""
_PROJECTION = re.compile(rf"_proj\.weight$|\.{RECURRENT}\.in_proj_\w+\.weight$")
_OF_MIXTURE = re.compile(r"expert|\.shared_mlp\.|_latent_proj\.")
_LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
INPUT_TABLE = "model.embed_tokens_per_layer.weight"
"""Rows of tokens in the inputs that layers have of their own."""
INPUT_PROJECTION = "model.per_layer_model_projection.weight"
INPUT_NORM = "model.per_layer_projection_norm.weight"
"""Parameters of the other part of these inputs: a matrix of all layers, and a norm they share."""
INPUT_GATE, INPUT_DOWN = "per_layer_input_gate.weight", "per_layer_projection.weight"
AFTER_INPUT = "post_per_layer_input_norm"
"""Parameters that add a layer's own input to its hidden states."""
MIXED_NORMS = (
    "post_feedforward_layernorm_1",
    "pre_feedforward_layernorm_2",
    "post_feedforward_layernorm_2",
)
"""Norms around a feed-forward and the mixture beside it: of the first's result, of what the second
reads, and of its result."""
ROUTER_SCALE, EXPERT_SCALES = "scale", "per_expert_scale"
"""Weight of the norm of a router of its own, and factors of the experts' shares."""
TO_LATENT, FROM_LATENT = "fc1_latent_proj.weight", "fc2_latent_proj.weight"
"""Matrices around experts that read and write a latent of hidden states."""
OF_TOKENS, OF_STATES = "eh_proj.tokens.weight", "eh_proj.states.weight"
"""Halves of the matrix by which an MTP layer joins embeddings of tokens with hidden states."""
TOKEN_NORM, STATE_NORM, MTP_NORM = "enorm", "hnorm", "shared_head.norm"
"""Norms of both, and of what an MTP layer makes of them."""
LAYER_SCALE = "layer_scalar"
"""Factor of the hidden states behind a layer."""
TABLES = (EMBEDDING, HEAD, INPUT_TABLE)
"""Matrices with a row for each token of the vocabulary, or more, which are not used."""


@cache
def weight_shapes(config: DecoderConfig) -> Mapping[str, Shape]:
    """Returns all tensors by their names in Hugging Face's checkpoints."""
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {EMBEDDING: table} | _norm(config, NORM)
    if config.has_head and not config.tie_embeddings:
        shapes[HEAD] = table
    if isinstance(config, Gemma4Config):
        shapes |= _input_shapes(config)
    mixture = _mixture(config) if isinstance(config, MoeConfig) else {}
    for index in range(config.num_layers):
        of_layer = _mixer(config, index)
        if config.has_feed_forward(index):
            of_layer |= mixture if has_experts(config, index) else _feed_forward(config, index)
        shapes |= {f"{layer_prefix(index)}{name}": shape for name, shape in of_layer.items()}
    if config.mtp_layer is not None:
        prefix = layer_prefix(config.mtp_layer)
        shapes |= {f"{prefix}{name}": shape for name, shape in _of_mtp(config).items()}
    return MappingProxyType(shapes)


def has_experts(config: DecoderConfig, index: int) -> bool:
    """Says whether the feed-forward of a layer is a mixture."""
    return isinstance(config, MoeConfig) and index not in config.dense_layers


def names_of_stage(config: DecoderConfig, stage: StageLayers) -> set[str]:
    """Returns the tensors that a pipeline stage holds; a tied table lies on both ends."""
    names = {
        name
        for name in weight_shapes(config)
        if name.startswith(tuple(layer_prefix(index) for index in stage.indices))
    }
    if stage.is_first:
        names.add(EMBEDDING)
        if isinstance(config, Gemma4Config):
            names.update(_input_shapes(config))
    if stage.is_last:
        names.update(_norm(config, NORM))
    if stage.is_last and config.has_head:
        names.add(EMBEDDING if config.tie_embeddings else HEAD)
    return names


def linear_shapes(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Returns the shapes of the matrices of all layers, by the names of their modules."""
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in weight_shapes(config).items()
        if _PROJECTION.search(name) and not _OF_MIXTURE.search(name)
        if config.latents is None or not name.endswith(_OF_LATENTS)
    }


def layer_prefix(index: int) -> str:
    """Returns what the names of a layer's tensors begin with."""
    return f"model.layers.{index}."


def feed_norm(config: DecoderConfig) -> str:
    """Returns the name of the norm that the feed-forward reads, within its layer."""
    if config.has_one_part:
        return ATTENTION_NORM
    name = "post_attention_layernorm"
    is_taken = config.has_inner_norms and name in config.inner_norms
    return "pre_feedforward_layernorm" if is_taken else name


def is_ignored(name: str, config: DecoderConfig) -> bool:
    """Says whether a tensor may be in a checkpoint although the model does not need it."""
    if name == HEAD:
        return config.tie_embeddings or not config.has_head
    if name == CLASSIFIER:
        return not config.has_head
    if is_behind(name, config) or _is_of_shared_keys(name, config):
        return True
    return name.endswith(".rotary_emb.inv_freq") or is_attention_scale(name)


def is_behind(name: str, config: DecoderConfig) -> bool:
    """Says whether a tensor is of a layer behind the last one, which predicts further tokens."""
    layer = _LAYER.match(name) if config.may_have_more_layers else None
    return layer is not None and int(layer[1]) >= config.num_layers


def _is_of_shared_keys(name: str, config: DecoderConfig) -> bool:
    """Says whether a tensor makes K or V in a layer that reads those of another."""
    start, _, rest = name.partition(".self_attn.")
    index = start.removeprefix("model.layers.")
    if rest[:6] not in ("k_proj", "v_proj", "k_norm", "v_norm") or not index.isdecimal():
        return False
    return int(index) < config.num_layers and config.kv_layer(int(index)) != int(index)


def _of_mtp(config: DecoderConfig) -> dict[str, Shape]:
    """Returns the tensors that an MTP layer has beside those of any layer."""
    square = (config.hidden_size, config.hidden_size)
    norms = _norm(config, TOKEN_NORM, STATE_NORM, MTP_NORM)
    return {OF_TOKENS: square, OF_STATES: square} | norms


def _input_shapes(config: Gemma4Config) -> dict[str, Shape]:
    width, size = config.num_layers * config.layer_input_size, config.layer_input_size
    if not width:
        return {}
    return {
        INPUT_TABLE: (config.vocab_size, width),
        INPUT_PROJECTION: (width, config.hidden_size),
        INPUT_NORM: (size,),
    }


def _of_gemma4(config: Gemma4Config) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {LAYER_SCALE: (1,)}
    if size := config.layer_input_size:
        shapes[INPUT_GATE] = (size, config.hidden_size)
        shapes[INPUT_DOWN] = (config.hidden_size, size)
        shapes |= _norm(config, AFTER_INPUT)
    if (experts := config.experts) is not None:
        shapes |= _mixture(experts) | _norm(config, *MIXED_NORMS)
        shapes[f"{experts.block}.{ROUTER_SCALE}"] = (config.hidden_size,)
        shapes[f"{experts.block}.{EXPERT_SCALES}"] = (experts.num_experts,)
    return shapes


def _mixer(config: DecoderConfig, index: int) -> dict[str, Shape]:
    """Returns the tensors of attention, or of what a layer has in its place."""
    if index in config.feed_forward_layers:
        return {}
    if index not in config.recurrent_layers:
        return _attention(config, index)
    assert config.recurrence is not None
    parts = _recurrent(config, config.recurrence)
    own = {f"{RECURRENT}.{name}": shape for name, shape in parts.items()}
    return _norm(config, ATTENTION_NORM) | own


def _recurrent(config: DecoderConfig, kept: Recurrence) -> dict[str, Shape]:
    """Returns the tensors of a recurrent layer by their names within `RECURRENT`."""
    hidden, bias = config.hidden_size, kept.proj_bias
    shapes = _linear("conv1d", (kept.channels, kept.kernel), has_bias=kept.conv_bias)
    match kept:
        case DeltaRule():
            heads, values = kept.num_value_heads, kept.value_columns
            rows = {"qkv": kept.channels, "z": values, "b": heads, "a": heads}
            shapes |= {f"in_proj_{name}.weight": (num, hidden) for name, num in rows.items()}
            shapes |= {"dt_bias": (heads,), "A": (heads,), "norm.weight": (kept.value_size,)}
            return shapes | {"out_proj.weight": (hidden, values)}
        case Mamba2():
            inner, heads = kept.inner_columns, kept.num_heads
            shapes |= _linear("in_proj", (inner + kept.channels + heads, hidden), has_bias=bias)
            shapes |= {"dt_bias": (heads,), "A": (heads,), "D": (heads,), "norm.weight": (inner,)}
            return shapes | _linear("out_proj", (hidden, inner), has_bias=bias)
    shapes |= _linear("in_proj", (3 * hidden, hidden), has_bias=bias)
    return shapes | _linear("out_proj", (hidden, hidden), has_bias=bias)


def _attention(config: DecoderConfig, index: int) -> dict[str, Shape]:
    if config.latents is not None:
        return _latent_attention(config, config.latents)
    heads = config.heads_of(index)
    hidden, head_size = config.hidden_size, heads.size
    query, key = heads.num_heads * head_size, heads.num_kv_heads * head_size
    shapes = _norm(config, ATTENTION_NORM) if config.has_input_norms else {}
    for name in heads.projections:
        rows = key if name != "q" else query * 2 if config.gates_attention else query
        shapes |= _linear(f"self_attn.{name}_proj", (rows, hidden), has_bias=config.qkv_bias)
    shapes |= _linear("self_attn.o_proj", (hidden, query), has_bias=config.o_bias)
    if config.has_sinks:
        shapes[SINKS] = (config.num_heads,)
    if config.qk_norm:
        whole = config.qk_norm_is_whole
        widths = {"q": query if whole else head_size, "k": key if whole else head_size}
        shapes |= {
            f"self_attn.{name}_norm.weight": (width,)
            for name, width in widths.items()
            if name in heads.projections
        }
    return shapes


def _latent_attention(config: DecoderConfig, sizes: LatentSizes) -> dict[str, Shape]:
    num_heads, hidden, bias = config.num_heads, config.hidden_size, config.qkv_bias
    shapes = _norm(config, ATTENTION_NORM)
    queries, query, rank = num_heads * (sizes.rotated + sizes.unrotated), "q_proj", hidden
    if sizes.query_rank is not None:
        query, rank = "q_b_proj", sizes.query_rank
        shapes |= _linear("self_attn.q_a_proj", (rank, hidden), has_bias=bias)
        shapes["self_attn.q_a_layernorm.weight"] = (rank,)
    shapes[f"self_attn.{query}.weight"] = (queries, rank)
    keys = (sizes.size + sizes.rotated, hidden)
    shapes |= _linear("self_attn.kv_a_proj_with_mqa", keys, has_bias=bias)
    shapes["self_attn.kv_a_layernorm.weight"] = (sizes.size,)
    expanded = num_heads * (sizes.unrotated + sizes.value)
    shapes["self_attn.kv_b_proj.weight"] = (expanded, sizes.size)
    down = (hidden, num_heads * sizes.value)
    return shapes | _linear("self_attn.o_proj", down, has_bias=config.o_bias)


def _feed_forward(config: DecoderConfig, index: int) -> dict[str, Shape]:
    has_own_norm = config.has_input_norms and not config.is_parallel
    shapes = _norm(config, feed_norm(config)) if has_own_norm else {}
    shapes |= _norm(config, *(config.inner_norms if config.has_inner_norms else ()))
    if isinstance(config, Gemma4Config):
        shapes |= _of_gemma4(config)
    return shapes | _gated("mlp", config, config.inner_size(index), has_bias=config.mlp_bias)


def _mixture(config: MoeConfig) -> dict[str, Shape]:
    hidden, inner, names = config.hidden_size, config.expert_size, config.names
    shapes = _norm(config, feed_norm(config))
    has_bias, columns = config.has_expert_biases, config.expert_columns or hidden
    if config.expert_columns is not None:
        shapes[f"{config.block}.{TO_LATENT}"] = (columns, hidden)
        shapes[f"{config.block}.{FROM_LATENT}"] = (hidden, columns)
    router = ROUTER.removesuffix(".weight")
    shapes |= _linear(f"{config.block}.{router}", (config.num_experts, hidden), has_bias=has_bias)
    for index in range(config.num_experts):
        prefix = f"{config.block}.{EXPERTS}.{index}."
        for name in (names.gate, names.up)[not config.has_gate :]:
            shapes |= _linear(f"{prefix}{name}", (inner, columns), has_bias=has_bias)
        shapes |= _linear(f"{prefix}{names.down}", (columns, inner), has_bias=has_bias)
    if config.choice.has_bias:
        shapes[f"{config.block}.{CHOICE_BIAS}"] = (config.num_experts,)
    if config.shared_size:
        shared = f"{config.block}.{config.shared_name}"
        shapes |= _gated(shared, config, config.shared_size, has_bias=False)
        if config.shared_has_gate:
            shapes[f"{config.block}.{SHARED_GATE}"] = (1, hidden)
    return shapes


def _gated(prefix: str, config: DecoderConfig, inner: int, *, has_bias: bool) -> dict[str, Shape]:
    shapes = dict[str, Shape]()
    for name in ("gate", "up")[not config.has_gate :]:
        shapes |= _linear(f"{prefix}.{name}_proj", (inner, config.hidden_size), has_bias=has_bias)
    return shapes | _linear(f"{prefix}.down_proj", (config.hidden_size, inner), has_bias=has_bias)


def _norm(config: DecoderConfig, *names: str) -> dict[str, Shape]:
    return {f"{name}.{part}": (config.hidden_size,) for name in names for part in config.norm_parts}


def _linear(name: str, shape: Shape, *, has_bias: bool) -> dict[str, Shape]:
    bias = {f"{name}.bias": shape[:1]} if has_bias else {}
    return {f"{name}.weight": shape} | bias
