"""Renders a folder as `kubectl kustomize` does, as far as our overlays go.

What is applied is what overlays make of the manifests, so that is what tests must look at, with or
without kubectl. A field of a kustomization that is not rendered here raises; where kubectl is
installed, a test compares.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

CLUSTER_WIDE = {"Namespace"}
_HEADER = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}


def render(folder: Path) -> list[Resource]:
    """Returns the resources that a folder's kustomization makes. Raises ValueError."""
    name_references = {"Deployment": ["spec/template/spec/containers/envFrom/configMapRef/name"]}
    resources = _accumulate(folder, name_references)
    _add_hashes(resources, name_references)
    return resources


def _accumulate(folder: Path, name_references: dict[str, list[str]]) -> list[Resource]:
    """Returns the resources, and adds the paths at which kinds name ConfigMaps."""
    (todo,) = _read(folder / "kustomization.yaml")
    if {name: todo.pop(name, None) for name in _HEADER} != _HEADER:
        raise ValueError(f"{folder} has no kustomization")
    resources = [
        one for name in todo.pop("resources") for one in _load(folder / name, name_references)
    ]
    resources += [_config_map(one) for one in todo.pop("configMapGenerator", ())]
    for name in todo.pop("configurations", ()):
        _read_name_references(folder / name, name_references)
    for patch in todo.pop("patches", ()):
        _patch(resources, patch)
    for labels in todo.pop("labels", ()):
        _label(resources, labels)
    for image in todo.pop("images", ()):
        _rename_image(resources, image)
    _into_namespace(resources, todo.pop("namespace", None))
    if todo:
        raise ValueError(f"{folder}: {', '.join(todo)} cannot be rendered here")
    return resources


def _load(path: Path, name_references: dict[str, list[str]]) -> list[Resource]:
    return _accumulate(path.resolve(), name_references) if path.is_dir() else _read(path)


def _read_name_references(path: Path, name_references: dict[str, list[str]]) -> None:
    (configuration,) = _read(path)
    _only(configuration, "nameReference")
    for reference in configuration["nameReference"]:
        _only(reference, "kind", "version", "fieldSpecs")
        assert (reference["kind"], reference["version"]) == ("ConfigMap", "v1")
        for field in reference["fieldSpecs"]:
            _only(field, "kind", "path")
            name_references.setdefault(field["kind"], []).append(field["path"])


def _read(path: Path) -> list[Resource]:
    return list(yaml.safe_load_all(path.read_text()))


def _config_map(generator: Resource) -> Resource:
    _only(generator, "name", "literals")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": generator["name"]},
        "data": dict(literal.split("=", 1) for literal in generator["literals"]),
    }


def _patch(resources: list[Resource], patch: Resource) -> None:
    """Removes or replaces what a JSON patch names in the one resource that it is for, or removes
    that."""
    operations = yaml.safe_load(patch["patch"])
    if "target" not in patch:
        _only(patch, "patch")
        _delete(resources, operations)
        return
    _only(patch, "target", "patch")
    _only(patch["target"], "kind", "name")
    kind, name = patch["target"]["kind"], patch["target"]["name"]
    (target,) = (one for one in resources if (one["kind"], one["metadata"]["name"]) == (kind, name))
    for operation in operations:
        if operation["op"] not in ("remove", "replace"):
            raise ValueError(f"{operation} cannot be rendered here")
        *path, last = [step.replace("~1", "/") for step in operation["path"].split("/")[1:]]
        at: Any = target
        for step in path:
            at = at[int(step) if isinstance(at, list) else step]
        key = int(last) if isinstance(at, list) else last
        if operation["op"] == "remove":
            del at[key]
        else:
            at[key] = operation["value"]


def _delete(resources: list[Resource], patch: Resource) -> None:
    if patch.pop("$patch") != "delete":
        raise ValueError(f"{patch} cannot be rendered here")
    _only(patch, "apiVersion", "kind", "metadata")
    _only(patch["metadata"], "name")
    (target,) = (
        one
        for one in resources
        if (one["apiVersion"], one["kind"], one["metadata"]["name"])
        == (patch["apiVersion"], patch["kind"], patch["metadata"]["name"])
    )
    resources.remove(target)


def _label(resources: list[Resource], labels: Resource) -> None:
    """Labels resources themselves, neither their pods nor what selects those."""
    _only(labels, "pairs")
    for one in resources:
        one["metadata"].setdefault("labels", {}).update(labels["pairs"])


def _rename_image(resources: list[Resource], image: Resource) -> None:
    for container in _containers(resources):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            tag = image.get("newTag", tag)
            container["image"] = image["newName"] + (f":{tag}" if tag else "")
    _only(image, "name", "newName", "newTag")


def _into_namespace(resources: list[Resource], namespace: str | None) -> None:
    for one in resources:
        if namespace and one["kind"] not in CLUSTER_WIDE:
            one["metadata"]["namespace"] = namespace


def _add_hashes(resources: list[Resource], name_references: dict[str, list[str]]) -> None:
    """Names ConfigMaps after what is in them, so that pods start anew when that changes."""
    names = {}
    for one in resources:
        if one["kind"] == "ConfigMap":
            old = one["metadata"]["name"]
            one["metadata"]["name"] = names[old] = f"{old}-{_hash(one)}"
    for one in resources:
        for path in name_references.get(one["kind"], ()):
            *steps, last = path.split("/")
            for holder in _at(one, steps):
                holder[last] = names[holder[last]]


def _at(holder: Any, steps: list[str]) -> Iterator[Resource]:
    """Yields what a path leads to; a list on it stands for each of its items."""
    if isinstance(holder, list):
        for item in holder:
            yield from _at(item, steps)
    elif not steps:
        yield holder
    elif steps[0] in holder:
        yield from _at(holder[steps[0]], steps[1:])


def _hash(config_map: Resource) -> str:
    content = {"data": config_map["data"], "kind": "ConfigMap", "name": ""}
    encoded = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(encoded.encode()).hexdigest()[:10]
    return digest.translate(str.maketrans("013ae", "ghkmt"))  # no accidental words


def _containers(part: Any) -> Iterator[Resource]:
    """Yields the containers of any kind of resource."""
    if isinstance(part, list):
        for item in part:
            yield from _containers(item)
    elif isinstance(part, dict):
        for name, value in part.items():
            if name == "containers":
                yield from value
            else:
                yield from _containers(value)


def _only(mapping: Resource, *known: str) -> None:
    if unknown := mapping.keys() - set(known):
        raise ValueError(f"{', '.join(sorted(unknown))} of {mapping} cannot be rendered here")
