"""Reads a directory of sentence-transformers: modules.json, and each module's configuration.

Old and new releases name their classes by other paths, which end alike.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.json_file import read_json
from signalbox_worker.models.pooling.module_weights import file_of_module, read_weight, stored_in
from signalbox_worker.models.pooling.token_pooling import POOLING_MODES, PoolingMode
from signalbox_worker.models.pooling.vector_modules import (
    Dense,
    Normalize,
    VectorLayerNorm,
    VectorModule,
    torch_function,
)

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
_PACKAGES = ("sentence_transformers.", "pylate.")
_TRANSFORMER, _POOLING, _SCORE = "Transformer", "Pooling", "LogitScore"
_MASK = "MultiVectorMask"
"""Says which of a prompt's vectors a search compares: their clients choose."""
_VECTOR_MODULES = ("Dense", "Dropout", "LayerNorm", "Normalize")
_KINDS = (_TRANSFORMER, _POOLING, _SCORE, _MASK, *_VECTOR_MODULES)
_TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Modes by the flags that a Pooling of an old release has, in the order of their vectors."""
_VECTOR, _TOKENS, _SCORES = "sentence_embedding", "token_embeddings", "scores"


class SavedModule(NamedTuple):
    """An entry of modules.json."""

    kind: str
    """Name of its class."""
    folder: Path
    place: str
    """The folder as modules.json gives it."""
    is_pylates: bool = False
    """True if PyLate saved it, whose modules are of tokens."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Its config.json; empty if it has none."""
        file = self.folder / "config.json"
        return read_json(file) if file.is_file() else {}


_NO_HEAD = SavedModule("", Path(), "")


class ScoredTokens(NamedTuple):
    """Tokens whose logits at the last token make a score."""

    true: int
    false: int | None
    """The score is the first logit less that of this token; None subtracts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModules:
    """The modules of a directory behind its model; a directory of a model alone has none."""

    head: SavedModule = _NO_HEAD
    """The pooling, or what makes a score of logits."""
    vector_modules: tuple[SavedModule, ...] = ()
    """Modules of the vector that the pooling made; without one, those of each token's vector."""

    @property
    def have_pooling(self) -> bool:
        return self.head.kind == _POOLING

    @property
    def token_modules(self) -> tuple[SavedModule, ...]:
        return () if self.head.kind else self.vector_modules

    @property
    def are_pylates(self) -> bool:
        """True if PyLate saved them, which gives all vectors length 1."""
        return any(one.is_pylates for one in self.vector_modules)

    @property
    def have_score(self) -> bool:
        return self.head.kind == _SCORE

    @property
    def modes(self) -> tuple[PoolingMode, ...]:
        """Modes of the pooling, whose vectors are concatenated. Raises ModelError."""
        config = self.head.config
        modes = config.get("pooling_mode")
        if modes is None:
            modes = [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
        modes = [modes] if isinstance(modes, str) else modes
        known = [mode for mode in POOLING_MODES if isinstance(modes, list) and mode in modes]
        if not known or len(known) != len(modes):
            raise ModelError(
                f"{self.head.place}/config.json pools by {str(modes)[:80]}; use some of "
                f"{', '.join(POOLING_MODES)}"
            )
        return tuple(sorted(known, key=modes.index))

    @property
    def scored_tokens(self) -> ScoredTokens:
        """Tokens of a LogitScore. Raises ModelError."""
        config = self.head.config
        ids = ScoredTokens(config.get("true_token_id", -1), config.get("false_token_id"))
        if not all(type(one) is int and one >= 0 for one in ids if one is not None):
            raise ModelError(f"{self.head.place}/config.json names no token ids; fetch it again")
        return ids

    @property
    def is_normalized(self) -> bool:
        """True if the last module makes vectors of length 1."""
        kinds = [one.kind for one in self.vector_modules if one.kind != "Dropout"]
        return kinds[-1:] == ["Normalize"]

    @property
    def makes_scores(self) -> bool:
        """True if the last module makes scores of classes, and no embedding."""
        return any(one.config.get("module_output_name") == _SCORES for one in self.vector_modules)

    def size_after(self, size: int) -> int:
        """Returns the size of what vectors of `size` elements become."""
        for one in self.vector_modules:
            if one.kind == "Dense":
                size = _counted(one, "out_features")
        return size

    @property
    def files(self) -> list[Path]:
        """Files that decide what the modules compute."""
        modules = [one for one in (self.head, *self.vector_modules) if one.kind]
        files = [one.folder / "config.json" for one in modules]
        weights = [
            file_of_module(one.folder)
            for one in self.vector_modules
            if one.kind in ("Dense", "LayerNorm")
        ]
        return [file for file in files if file.is_file()] + weights

    def make(self, size: int, *, without_last_normalize: bool) -> list[VectorModule]:
        """Reads the modules that follow pooling, which makes vectors of `size`."""
        saved = [one for one in self.vector_modules if one.kind != "Dropout"]
        if without_last_normalize and self.is_normalized:
            saved.pop()
        made: list[VectorModule] = []
        for one in saved:
            made.append(_make(one, size))
            size = made[-1].weight.shape[0] if isinstance(made[-1], Dense) else size
        return made


def has_modules(root: Path | None) -> bool:
    """Says whether a directory is one of sentence-transformers."""
    return root is not None and (root / MODULES).is_file()


def transformer_folder(root: Path) -> Path:
    """Returns where the model itself is in a directory; old releases gave it a folder."""
    if not has_modules(root) or (root / "config.json").is_file():
        return root
    first = _read_list(root)[0]
    return first.folder if first.kind == _TRANSFORMER else root


def read_modules(root: Path) -> SavedModules:
    """Reads modules.json. Raises ModelError for what is not served."""
    first, *others = _read_list(root)
    if first.kind != _TRANSFORMER:
        raise ModelError(f"{MODULES} begins with {first.kind}; only models of tokens are served")
    has_head = bool(others) and others[0].kind in (_POOLING, _SCORE)
    saved = SavedModules(head=others.pop(0)) if has_head else SavedModules()
    others = others if has_head else [one for one in others if one.kind != _MASK]
    for one in others:
        if one.kind not in _VECTOR_MODULES:
            raise ModelError(f"{MODULES} has {one.kind} where it is not supported: after pooling")
        if saved.have_score:
            raise ModelError(f"{MODULES} has {one.kind} without {_POOLING} before it")
        _check_names(one, _VECTOR if has_head else _TOKENS)
    return replace(saved, vector_modules=tuple(others))


def _read_list(root: Path) -> Sequence[SavedModule]:
    file = root / MODULES
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        modules = [_entry(root, one["type"], one["path"]) for one in entries]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{file} does not list modules ({error}); fetch it again") from None
    if not modules:
        raise ModelError(f"{file} lists no modules; fetch it again")
    return modules


def _entry(root: Path, path: str, place: str) -> SavedModule:
    kind = path.rpartition(".")[2]
    if not path.startswith(_PACKAGES) or kind not in _KINDS:
        raise ModelError(
            f"{MODULES} names {path[:80]}, which is not supported; supported are "
            f"{', '.join(_KINDS)}"
        )
    if Path(place).is_absolute() or ".." in Path(place).parts:
        raise ModelError(f"{MODULES} names {place[:80]}, which is not in its folder")
    return SavedModule(kind, root / place, place, path.startswith("pylate."))


def _check_names(module: SavedModule, expected: str) -> None:
    """Refuses a module that reads or writes anything but the vector, or but those of tokens."""
    config = module.config
    usual = _TOKENS if module.is_pylates else _VECTOR
    given = config.get("module_input_name", usual)
    made = config.get("module_output_name") or given
    if given != expected or made not in (expected, *((_SCORES,) if expected == _VECTOR else ())):
        raise ModelError(
            f"{module.kind} in {module.place} reads {given!r} and makes {made!r}; only modules of "
            f"{expected!r} are supported there"
        )


def _counted(module: SavedModule, name: str) -> int:
    value = module.config.get(name)
    if type(value) is not int or value < 1:
        raise ModelError(f"{module.place}/config.json says {name} = {str(value)[:40]}")
    return value


def _make(module: SavedModule, size: int) -> VectorModule:
    if module.kind == "Normalize":
        return Normalize()
    if module.kind == "LayerNorm":
        weight, bias = _weights(module, {"norm.weight": (size,), "norm.bias": (size,)})
        return VectorLayerNorm(weight, bias, eps=1e-5)
    config, out = module.config, _counted(module, "out_features")
    function = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    has_bias, has_residual = config.get("bias", True), bool(config.get("use_residual"))
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (out, size)}
    shapes |= {"linear.bias": (out,)} if has_bias else {}
    shapes |= {"residual.weight": (out, size)} if has_residual and size != out else {}
    weight, *others = _weights(module, shapes)
    bias = others.pop(0) if has_bias else None
    residual = [*others, np.eye(size, dtype=np.float32)][0] if has_residual else None
    return Dense(weight, bias, torch_function(str(function), module.place), residual)


def _weights(module: SavedModule, shapes: Mapping[str, tuple[int, ...]]) -> list[Any]:
    """Reads the tensors of a module. Raises ModelError if one is missing, or others are there."""
    stored = stored_in(file_of_module(module.folder))
    if others := stored.keys() - shapes.keys():
        raise ModelError(
            f"{module.place} has the tensor {min(others)!r}, which its config.json has no use for"
        )
    return [read_weight(stored, name, shape) for name, shape in shapes.items()]


def read_settings(root: Path | None) -> Mapping[str, Any]:
    """Returns config_sentence_transformers.json; empty if there is none."""
    file = None if root is None else root / SETTINGS
    return read_json(file) if file is not None and file.is_file() else {}


def transformer_config_file(directory: Path) -> Path | None:
    """Returns the file with max_seq_length and do_lower_case, if there is one."""
    files = (directory / name for name in _TRANSFORMER_CONFIGS)
    return next((file for file in files if file.is_file()), None)
