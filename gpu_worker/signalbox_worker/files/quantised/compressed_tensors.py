"""The configuration of compressed-tensors, which llm-compressor writes: several groups of modules,
each with a scheme for its weights and perhaps one for its activations.

The formats are pack-quantized (whole numbers of 4 and 8 bits), int-quantized (whole numbers of 8
bits), float-quantized (E4M3), naive-quantized (either of these), mxfp4-pack-quantized and
nvfp4-pack-quantized.
`actorder` "weight" is how codes were chosen; "group" puts columns into groups by an index, which is
a tensor.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from signalbox_worker.files.quantised import codes, mxfp4, nvfp4
from signalbox_worker.files.quantised.activations import ActivationScheme, described_scheme
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.codes import NUMPY
from signalbox_worker.files.quantised.fields import (
    MAX_GROUP_SIZE,
    Described,
    arguments,
    not_served,
    refuse_others,
)
from signalbox_worker.files.quantised.form import (
    FLOATS,
    INDICES,
    WORDS,
    QuantisedForm,
    Read,
    Shapes,
    Tensors,
)
from signalbox_worker.files.quantised.module_names import best_match
from signalbox_worker.files.quantised.scaled import ROW, scaled_form

NAME = "compressed-tensors"
_READ = ("config_groups", "format", "ignore", "kv_cache_scheme", "sparsity_config")
_HOW_MADE = ("quantization_status", "global_compression_ratio", "version", "run_compressed")
_GROUP_READ = ("targets", "weights", "input_activations", "format")
_SCHEME_READ = (
    *("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure"),
    *("dynamic", "actorder"),
)
_SCHEME_HOW_MADE = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
_PACKED, _MXFP4, _NVFP4 = "pack-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized"
_BY_GROUPS = ("group", "tensor_group")
"""Strategies with scales of groups; those of the latter are under one of the matrix."""
_PLAIN = {"int-quantized": "int", "float-quantized": "float", "naive-quantized": None}
"""Formats of one number in 8 bits for each weight, and its type."""


class _Group(NamedTuple):
    """Form and rounding that some modules have."""

    targets: tuple[str, ...]
    form: QuantisedForm | None
    activations: ActivationScheme | None


_NOTHING = _Group((), None, None)


def compressed_tensors_checkpoint(described: Described) -> QuantisedCheckpoint | None:
    """Reads all groups; of those that match a module, the most specific one is meant.

    Returns None if no group has a form of weights: they are floats, and scales of K and V may be
    all that is there.
    """
    refuse_others(described, NAME, (*_READ, *_HOW_MADE))
    _check_sparsity(described.get("sparsity_config"))
    groups = described.get("config_groups")
    if not groups:
        return None
    if not isinstance(groups, Mapping):
        raise not_served(NAME, f"config_groups {str(groups)[:40]!r}", "groups by name")
    read = [_group(group, described) for group in groups.values()]
    if not any(group.form for group in read):
        return None
    ignored = _names(described.get("ignore"), "ignore")

    def group_of(module: str) -> _Group:
        if best_match(module, ignored) is not None:
            return _NOTHING
        matches = [(best_match(module, group.targets), group) for group in read]
        matching = [(match, group) for match, group in matches if match is not None]
        return min(matching, key=lambda one: one[0])[1] if matching else _NOTHING

    forms = tuple(dict.fromkeys(group.form for group in read if group.form is not None))
    schemes = [group.activations for group in read if group.activations is not None]
    prescribed = sum(bool(group.get("input_activations")) for group in groups.values())
    is_fp8 = {form.name for form in forms} == {"fp8"}
    return QuantisedCheckpoint(
        "fp8" if is_fp8 else NAME,
        forms,
        lambda module: group_of(module).form,
        lambda module: group_of(module).activations,
        tuple(dict.fromkeys(schemes)),
        leaves_activations=len(schemes) < prescribed,
        other_names=(NAME,) if is_fp8 else (),
    )


def _check_sparsity(sparsity: Any) -> None:
    """Raises ModelError unless zeros are stored as other values are."""
    stored_as = sparsity.get("format", "dense") if isinstance(sparsity, Mapping) else sparsity
    if stored_as not in (None, "dense"):
        raise not_served(NAME, f"sparsity_config {str(stored_as)[:40]!r}", "'dense'")


def _group(group: Any, described: Described) -> _Group:
    weights = group.get("weights", {}) if isinstance(group, Mapping) else {}
    if weights is None and group.get("input_activations") is None:
        refuse_others(group, NAME, _GROUP_READ)
        return _Group(_names(group.get("targets"), "targets"), None, None)
    if not weights or not isinstance(weights, Mapping):
        raise not_served(NAME, "a group without weights", "weights in each group")
    refuse_others(group, NAME, _GROUP_READ)
    refuse_others(weights, NAME, (*_SCHEME_READ, *_SCHEME_HOW_MADE))
    activations = _activations(group.get("input_activations"))
    stored_as = str(group.get("format") or described.get("format"))
    form = _form(arguments(weights), stored_as)
    return _Group(_names(group.get("targets"), "targets"), form, activations)


def _names(names: Any, field: str) -> tuple[str, ...]:
    found = names or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise not_served(NAME, f"{field} {str(names)[:40]!r}", "a list of names")
    return tuple(found)


def _activations(activations: Any) -> ActivationScheme | None:
    """Returns None for floats."""
    if activations is None:
        return None
    if not isinstance(activations, Mapping):
        raise not_served(NAME, f"input_activations {str(activations)[:40]!r}", "a scheme of fields")
    refuse_others(activations, NAME, (*_SCHEME_READ, *_SCHEME_HOW_MADE))
    activations = arguments(activations)
    strategy, bits = activations["strategy"], activations["num_bits"]
    if strategy not in ("token", "tensor", *_BY_GROUPS) or bits not in (4, 8):
        raise not_served(
            NAME, f"activations of {bits} bits by {strategy}", "activations of 8 bits by token"
        )
    return described_scheme(activations)


def _form(weights: Described, stored_as: str) -> QuantisedForm:
    kind, bits, strategy = (weights[name] for name in ("type", "num_bits", "strategy"))
    size = _group_size(weights)
    if stored_as == _PACKED and kind == "int" and bits in (4, 8):
        return _packed(int(bits), size, has_zeros=not weights["symmetric"])
    if stored_as == _NVFP4 and (kind, bits, size) == ("float", 4, nvfp4.GROUP):
        return nvfp4.nvfp4_form(NAME)
    if stored_as == _MXFP4 and (kind, bits, size) == ("float", 4, mxfp4.GROUP):
        return mxfp4.packed_form(NAME)
    of_format = _PLAIN.get(stored_as, "") or kind
    if stored_as in _PLAIN and kind == of_format and bits == 8:
        block = {"tensor": ROW, "channel": ROW, "group": (1, size or 0)}.get(str(strategy))
        if strategy == "block":
            block = _block(weights)
        if block is not None:
            return scaled_form("fp8" if kind == "float" else NAME, block)
    raise not_served(
        NAME,
        f"{stored_as[:40]!r} of {kind} in {bits} bits by {strategy}",
        f"pack-quantized, int-quantized, float-quantized, {_MXFP4} or {_NVFP4}",
    )


def _group_size(weights: Described) -> int | None:
    size = weights.get("group_size")
    if weights["strategy"] not in _BY_GROUPS:
        return None
    if not isinstance(size, int) or not 1 <= size <= MAX_GROUP_SIZE:
        raise not_served(NAME, f"groups of {str(size)[:40]!r}", "groups of some columns")
    return size


def _block(weights: Described) -> tuple[int, int]:
    block = weights.get("block_structure")
    if not (
        isinstance(block, list)
        and len(block) == 2
        and all(isinstance(size, int) and size > 0 for size in block)
    ):
        raise not_served(NAME, f"blocks of {str(block)[:40]}", "blocks such as 128 x 128")
    return block[0], block[1]


@cache
def _packed(bits: int, size: int | None, *, has_zeros: bool) -> QuantisedForm:
    unpack = partial(codes.unpack_along_rows, bits=bits)

    def shape(shapes: Shapes, read: Read) -> tuple[int, ...]:
        return codes.shape_along_rows(shapes, read, group_size=size, bits=bits, has_zeros=has_zeros)

    def decode(tensors: Tensors) -> Any:
        return codes.decode(unpack(tensors, NUMPY), group_size=size)

    ends = {
        "weight_packed": WORDS,
        "weight_scale": FLOATS,
        "weight_shape": INDICES,
        "weight_g_idx": INDICES,
    }
    if has_zeros:
        ends["weight_zero_point"] = WORDS
    return QuantisedForm(
        name=NAME,
        marker="weight_packed",
        ends=ends,
        shape=shape,
        decode=decode,
        bits=bits,
        group_size=size,
        unpack=unpack,
    )
