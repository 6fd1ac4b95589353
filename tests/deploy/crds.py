"""Checks custom resources as the API server does, by the published definitions of their releases.

`python -m tests.deploy.crds FOLDER` does it for all of deploy/kubernetes, and records in
`crds.yaml` what it has found valid, so that a test without the definitions notices what has changed
since. FOLDER has the files that `crds.yaml` names, as their releases have them. Rules of the
definitions that are written in CEL are not computed.
"""

import functools
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.deploy.kustomize import Resource, render

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
FOLDERS = ("base", "cpu", "kuberay", "leaderworkerset", "monitoring", "rayjob")
RELEASES = ("1.30", "1.37")
"""Of Kubernetes."""
RECORD = Path(__file__).with_name("crds.yaml")
VARIABLE = "CRDS"
"""Environment variable of the folder with the definitions."""

Schema = dict[str, Any]


@functools.cache
def record() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(RECORD.read_text())
    return content


def folder_of_definitions() -> Path | None:
    return Path(folder) if (folder := os.environ.get(VARIABLE)) else None


@functools.cache
def read_schemas(folder: Path) -> dict[str, Schema]:
    """Returns the strict schemas by apiVersion/kind. Raises ValueError for a file of another
    release, and FileNotFoundError."""
    found = {}
    for name, origin in record()["definitions"].items():
        content = (folder / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != origin["sha256"]:
            raise ValueError(
                f"{name} is not {origin['path']} of {origin['repository']} {origin['tag']}"
            )
        spec = yaml.load(content, yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            kind = f"{spec['group']}/{version['name']}/{spec['names']['kind']}"
            found[kind] = strict(version["schema"]["openAPIV3Schema"])
    return found


def strict(schema: Schema) -> Schema:
    """Returns the JSON schema of a structural one that refuses fields which are not declared.

    What is in allOf, anyOf, oneOf and not restricts values alone, and declares none.
    """
    found = dict(schema)
    if "properties" in schema:
        found["properties"] = {name: strict(one) for name, one in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.setdefault("additionalProperties", False)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            found[name] = strict(schema[name])
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") else found


def is_custom(resource: Resource) -> bool:
    return f"{resource['apiVersion']}/{resource['kind']}" in record()["kinds"]


def validate(resource: Resource, schemas: dict[str, Schema]) -> None:
    """Raises jsonschema.ValidationError."""
    schema = schemas[f"{resource['apiVersion']}/{resource['kind']}"]
    jsonschema.Draft4Validator(schema).validate(resource)  # OpenAPI 3.0 is of its time
    described = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": resource["metadata"]}
    kubernetes_validate.validate(described, RELEASES[-1], strict=True)


def digest(resource: Resource) -> str:
    return hashlib.sha256(json.dumps(resource, sort_keys=True).encode()).hexdigest()


@functools.cache
def custom_resources() -> dict[str, Resource]:
    """Returns the custom resources of all folders, by their digests; they are not to be changed."""
    return {
        digest(one): one
        for folder in FOLDERS
        for one in render(KUBERNETES / folder)
        if is_custom(one)
    }


def named(resource: Resource) -> str:
    return f"{resource['kind']} {resource['metadata']['name']}"


def main() -> None:
    found, schemas = custom_resources(), read_schemas(Path(sys.argv[1]))
    for one in found.values():
        validate(one, schemas)
    lines = sorted(f"  {key}: {named(one)}" for key, one in found.items())
    head, mark, _ = RECORD.read_text().partition("valid:\n")
    RECORD.write_text(head + mark + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
