"""Fields that the configurations of families with recurrent layers have in common."""

from collections.abc import Collection
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import FULL, MAX_NUM_LAYERS
from signalbox_worker.models.family_config import FamilyConfig, UnsoundConfig, counted

LINEAR, CONVOLUTION = "linear_attention", "conv"
_OLD_KINDS = {"attention": FULL, "mamba": LINEAR}
_SILU = ("silu", "swish")
MAX_KERNEL = 1 << 8
"""More inputs than any convolution sums."""
MAX_STATE = 1 << 16
"""More than any state has for each column."""


def layer_kinds(
    config: FamilyConfig, kinds: Any, usual: Collection[str], *, name: str = "layer_types"
) -> list[str]:
    """Returns the kinds of all layers, by their names of today.

    Args:
        kinds: what config.json has under `name`.
        usual: kinds that the family has.

    Raises ModelError if there is no recurrent layer, or none that attends, too.
    """
    if not isinstance(kinds, list) or not all(isinstance(one, str) for one in kinds):
        raise UnsoundConfig(f"config.json says {name} = {str(kinds)[:40]}, which are no names")
    if not 1 <= len(kinds) <= MAX_NUM_LAYERS:
        raise UnsoundConfig(f"config.json says {name} of {len(kinds)} layers")
    found = [_OLD_KINDS.get(str(one), str(one)) for one in kinds]
    architecture = config["architectures"][0]
    if others := [one for one in found if one not in usual]:
        raise ModelError(f"{architecture} with {name} of {others[0][:40]!r} is not supported")
    if not {LINEAR, CONVOLUTION} & {*found}:
        raise ModelError(f"{architecture} whose {name} all attend is not supported natively")
    if FULL not in found:
        raise ModelError(f"{architecture} is not supported with a {name} by which no layer attends")
    return found


def kinds_of_all(
    config: FamilyConfig,
    kinds: Any,
    usual: Collection[str],
    num_layers: int,
    *,
    name: str = "layer_types",
) -> list[str]:
    """Returns the same of a family whose number of layers is a field of its own.

    Args:
        name: the field that the kinds follow from.
    """
    if isinstance(kinds, list) and len(kinds) != num_layers:
        raise UnsoundConfig(
            f"config.json says num_hidden_layers = {num_layers} and layer_types of {len(kinds)}"
        )
    return layer_kinds(config, kinds, usual, name=name)


def places(kinds: list[str], kind: str) -> frozenset[int]:
    return frozenset(index for index, one in enumerate(kinds) if one == kind)


def refuse(config: FamilyConfig, **served: Any) -> None:
    """Raises ModelError for a field that says something else than what is served."""
    for name, value in served.items():
        if config.get(name) != value:
            raise ModelError(
                f"{config['architectures'][0]} with {name} {str(config[name])[:40]} is not "
                f"supported; use a model with {value}"
            )


def check_no_window(config: FamilyConfig) -> None:
    """Raises ModelError for a window, which no layer of these families has."""
    window, longest = config["sliding_window"], counted(config, "max_position_embeddings")
    if window is not None and counted(config, "sliding_window") < longest:
        raise ModelError(
            f"{config['architectures'][0]} with sliding_window {window} is not supported, since "
            "its layers have none; take the field out"
        )


def check_silu(config: FamilyConfig, name: str) -> None:
    if config[name] not in _SILU:
        raise ModelError(
            f"{config['architectures'][0]} with {name} {str(config[name])[:40]!r} is not "
            "supported; use silu"
        )


def kernel(config: FamilyConfig, name: str) -> int:
    """Returns the inputs that a convolution sums."""
    return counted(config, name, least=2, most=MAX_KERNEL)
