"""Writes gpu_worker/signalbox_worker/models/family_table.json: what transformers' classes say about
config.json.

For the configuration class of each registered architecture it has the architectures, the fields
with their defaults, other names with theirs, names that stand for another, fields that take no
null, and which of the names transformers' code reads: the class, the model's own code, and the
modules that all models share. `python -m scripts.family_table` writes it; a test compares.
"""

import ast
import dataclasses
import importlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers
from transformers import (
    PreTrainedConfig,
    cache_utils,
    masking_utils,
    modeling_rope_utils,
    modeling_utils,
)

from signalbox_worker.models.family_config import TABLE
from signalbox_worker.models.registry import architectures

_ROPE = "RotaryEmbeddingConfigMixin"
_OF_KWARGS = ("kwargs.get", "kwargs.pop", "kwargs.setdefault")
_LIKE = {"HF_ColBERT": "BertModel"}
"""Architectures of other libraries, with a class of transformers whose configuration they have."""
Names = dict[str, Any]
"""Defaults by name; None where the code names none."""


def table() -> dict[str, dict[str, Any]]:
    """Returns the entry of each configuration class, by its name."""
    users: dict[Any, list[str]] = {PreTrainedConfig: []}
    for name in sorted(architectures()):
        if (model_class := getattr(transformers, _LIKE.get(name, name), None)) is not None:
            users.setdefault(model_class.config_class, []).append(name)
    entries = {kind.__name__: _entry(kind, names) for kind, names in users.items()}
    return dict(sorted(entries.items()))


def text() -> str:
    """Returns the file, a line for each part of an entry."""
    lines = []
    for name, entry in table().items():
        parts = ",\n".join(f'  "{key}": {json.dumps(part)}' for key, part in entry.items())
        lines.append(f' "{name}": {{\n{parts}\n }}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entry(kind: Any, names: list[str]) -> dict[str, Any]:
    aliases = dict(kind.attribute_map)
    fields = {
        one.name: _plain(one.default)
        for one in dataclasses.fields(kind)
        if one.default is not dataclasses.MISSING
    }
    usual = kind()
    if "rope_parameters" in fields:
        fields["rope_parameters"] = _scaling(usual.rope_parameters, kind.default_theta)
    own = {aliases.get(name, name) for name in fields}
    of_models = _of_models({_LIKE.get(name, name) for name in names})
    found = _joined(_shared(kind), of_models, _of_class(kind))
    read = {
        aliases.get(name, name): default
        for name, default in found.items()
        if aliases.get(name, name) in own or _is_setting(kind, name)
    }
    others = {
        name: _scalar(getattr(usual, name, None)) if default is None else default
        for name, default in read.items()
        if name not in own
    }
    return {
        "architectures": names,
        "aliases": aliases,
        "fields": fields,
        "others": dict(sorted(others.items())),
        "not_null": sorted(name for name in own if not _takes_null(kind, name)),
        "unread": sorted(own - read.keys()),
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _scalar(value: Any) -> Any:
    """Returns what a property of the class says, unless it is made of several fields."""
    return value if isinstance(value, str | int | float) else None


def _scaling(rotation: Any, base: float) -> Any:
    """Returns the rotation that the class makes where a file has none; None if nothing is scaled.

    Args:
        base: the class's, which has a name of its own and is left out.
    """
    if not isinstance(rotation, dict) or rotation.get("rope_type") in (None, "default"):
        return None
    return {k: v for k, v in rotation.items() if (k, v) != ("rope_theta", base)}


def _joined(*found: Names) -> Names:
    """Returns the last default of each name, if any code names one."""
    joined: Names = {}
    for name, default in (item for names in found for item in names.items()):
        joined[name] = joined.get(name) if default is None else default
    return joined


def _is_setting(kind: Any, name: str) -> bool:
    """Says whether a name can stand in config.json: the class's own and inner state cannot."""
    is_own = hasattr(kind, name) and not isinstance(getattr(kind, name), property)
    return not name.startswith("_") and not is_own


def _takes_null(kind: Any, name: str) -> bool:
    try:
        kind(**{name: None})
    except Exception:  # the class's own checks, or what its code does with None
        return False
    return True


def _shared(kind: Any) -> Names:
    """Returns the names that code for all models reads: masks, cache, and the rotation if any."""
    found = _joined(_names([_parse(masking_utils)]), _names([_parse(cache_utils)]))
    of_base = _names([_parse(modeling_utils)])  # and much that only its loader knows
    found |= {name: None for name in of_base if name in kind.__dataclass_fields__}
    base = _parse(importlib.import_module(PreTrainedConfig.__module__))
    start, choice = (
        _function(_class(base, PreTrainedConfig.__name__), name)
        for name in ("__post_init__", "get_text_config")
    )
    listed = (one.elts for one in ast.walk(choice) if isinstance(one, ast.Tuple))
    names = (one.value for one in itertools.chain(*listed) if isinstance(one, ast.Constant))
    found |= {str(name): None for name in names}
    of_rope = _parse(modeling_rope_utils)
    rotation = [
        _function(_class(of_rope, _ROPE), name)
        for name in ("convert_rope_params_to_dict", "standardize_rope_params")
    ]
    of_mixin = _names(rotation, kind)
    of_all = {name: one for name, one in _names([start], kind).items() if "rope" not in name}
    found = _joined(found, of_all)
    if kind is not PreTrainedConfig and "rope_parameters" not in kind.__dataclass_fields__:
        return found
    of_functions = _names([one for one in of_rope.body if isinstance(one, ast.FunctionDef)])
    theta = {"rope_theta": kind.default_theta} if isinstance(kind.default_theta, float) else {}
    return _joined(found, of_functions, of_mixin, theta)


def _of_class(kind: Any) -> Names:
    if kind is PreTrainedConfig:
        return {}
    tree = _parse(importlib.import_module(kind.__module__))
    parts = [
        part
        for part in _class(tree, kind.__name__).body
        if isinstance(part, ast.FunctionDef) and not part.name.startswith(("validate", "to_dict"))
    ]
    return _names(parts, kind)


def _of_models(names: Iterable[str]) -> Names:
    """Returns the names that the models' code reads, where the architectures reach it."""
    found: Names = {}
    for name in names:
        module = importlib.import_module(getattr(transformers, name).__module__)
        defined = dict(_defined(_parse(module)))
        reached, left = set[str](), [name]
        while left:
            part = left.pop()
            if part in defined and part not in reached:
                reached.add(part)
                left += [one.id for one in _walk(defined[part]) if isinstance(one, ast.Name)]
        found = _joined(found, _names([defined[part] for part in sorted(reached)]))
    return found


def _defined(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yields the classes, functions and values of a module, by their names."""
    for one in tree.body:
        if isinstance(one, ast.ClassDef | ast.FunctionDef):
            yield one.name, one
        elif isinstance(one, ast.Assign):
            yield from ((target.id, one) for target in one.targets if isinstance(target, ast.Name))


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields all nodes but those that initialise weights, which come from a checkpoint."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.FunctionDef) and child.name == "_init_weights"):
            yield from _walk(child)


def _names(trees: Iterable[ast.AST], kind: Any = None) -> Names:
    """Returns what code reads of configurations; of `self` and `kwargs` too, if it is a class's."""
    nodes = (node for tree in trees for node in _walk(tree))
    return _joined(*({name: default} for node in nodes for name, default in _reads(node, kind)))


def _reads(node: ast.AST, kind: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.Attribute) and _is_config(node.value, kind):
        yield node.attr, None
    if not isinstance(node, ast.Call):
        return
    call, arguments = ast.unparse(node.func), node.args
    if call in ("getattr", "hasattr") and _is_config(arguments[0], kind):
        name, default = arguments[1], arguments[2:]
    elif kind is not None and call in _OF_KWARGS:
        name, default = arguments[0], arguments[1:]
    else:
        return
    if isinstance(name, ast.Constant):
        yield name.value, _value(default[0], kind) if default else None


def _is_config(node: ast.expr, kind: Any) -> bool:
    name = ast.unparse(node).rpartition(".")[2]
    return name == "config" or name.endswith("_config") or (kind is not None and name == "self")


def _value(node: ast.expr, kind: Any) -> Any:
    """Returns a default that the code says itself, or that is an attribute of the class."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "self.default_theta":
        return kind.default_theta[ast.literal_eval(node.slice)]
    return None


def _parse(module: ModuleType) -> ast.Module:
    return ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)


def _function(of: ast.ClassDef, name: str) -> ast.FunctionDef:
    return next(one for one in of.body if isinstance(one, ast.FunctionDef) and one.name == name)


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
