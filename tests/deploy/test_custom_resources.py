"""Custom resources are valid by the published definitions of their releases.

The definitions are not part of this repository: CRDS names a folder with them. Without it a test
compares what overlays make of the manifests with what was found valid.
"""

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.deploy.crds import (
    Schema,
    custom_resources,
    folder_of_definitions,
    named,
    read_schemas,
    record,
    strict,
    validate,
)
from tests.deploy.kustomize import Resource

REMEDY = "check it: python -m tests.deploy.crds FOLDER, with the files that crds.yaml names"


@pytest.fixture
def schemas() -> Iterator[dict[str, Schema]]:
    folder = folder_of_definitions()
    if folder is None:
        pytest.skip("CRDS names no folder with the definitions that crds.yaml lists")
    yield read_schemas(folder)


def find(name: str) -> Resource:
    """Returns one resource, to be changed."""
    return copy.deepcopy(next(one for one in custom_resources().values() if named(one) == name))


def test_each_custom_resource_is_one_that_was_found_valid() -> None:
    valid = record()["valid"]
    changed = [named(one) for key, one in custom_resources().items() if key not in valid]
    assert not changed, REMEDY
    assert set(valid) == custom_resources().keys(), REMEDY


def test_each_custom_resource_is_valid(schemas: dict[str, Schema]) -> None:
    for one in custom_resources().values():
        validate(one, schemas)


@pytest.mark.parametrize(
    ("name", "path", "wrong"),
    [
        ("Certificate router", "spec/usages", ["server"]),
        ("Certificate router", "spec/dnsName", "router"),
        ("Certificate router", "spec/secretName", None),
        ("Issuer authority", "spec/ca/secret", "authority"),
        ("PodMonitor worker", "spec/podMetricsEndpoints/0/portName", "metrics"),
        ("PodMonitor worker", "metadata/label", {}),
        ("LeaderWorkerSet worker", "spec/leaderWorkerTemplate/size", "2"),
        ("LeaderWorkerSet worker", "spec/leaderWorkerTemplate/restartPolicy", "Always"),
        ("LeaderWorkerSet worker", "spec/leaderWorkerTemplate/template", {}),
        (
            "LeaderWorkerSet worker",
            "spec/leaderWorkerTemplate/workerTemplate/spec/terminationGracePeriod",
            140,
        ),
        ("RayCluster worker", "spec/authOptions/mode", "secret"),
        ("RayCluster worker", "spec/headGroupSpec/rayStartParams/num-cpus", 0),
        ("RayCluster worker", "spec/workerGroupSpecs/0/replica", 2),
        ("RayCluster worker", "spec/workerGroupSpecs/0/template/spec/containers/0/port", []),
        ("RayJob second-worker", "spec/clusterSelector", "worker"),
        ("RayJob second-worker", "spec/entryPoint", "signalbox worker"),
    ],
)
def test_a_wrong_field_is_found(
    name: str, path: str, wrong: object, schemas: dict[str, Schema]
) -> None:
    resource = find(name)
    validate(resource, schemas)
    *steps, last = path.split("/")
    at: Any = resource
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[last] = wrong
    with pytest.raises(jsonschema.ValidationError):
        validate(resource, schemas)


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ({"size": 2}, True),
        ({"size": "2"}, False),
        ({"seize": 2}, False),
        ({"surge": "25%"}, True),
        ({"surge": 1}, True),
        ({"surge": 0.5}, False),
        ({"gone": None}, True),
        ({"size": None}, False),
        ({"any": {"thing": 1}}, True),
        ({"labels": {"a": "b"}}, True),
        ({"labels": {"a": 1}}, False),
        ({"list": [{"name": "a"}]}, True),
        ({"list": [{"nam": "a"}]}, False),
    ],
)
def test_schemas_are_as_strict_as_the_api_server(value: object, is_valid: bool) -> None:
    name = {"type": "object", "properties": {"name": {"type": "string"}}}
    schema = strict(
        {
            "type": "object",
            "properties": {
                "size": {"type": "integer"},
                "surge": {
                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                    "x-kubernetes-int-or-string": True,
                },
                "gone": {"type": "string", "nullable": True},
                "any": {**name, "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "list": {"type": "array", "items": name},
            },
            "anyOf": [
                {"required": [one]} for one in ("size", "surge", "gone", "any", "labels", "list")
            ],
        }
    )
    assert jsonschema.Draft4Validator(schema).is_valid(value) == is_valid
