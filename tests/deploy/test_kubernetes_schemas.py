"""What kustomize makes of the manifests is valid by the schemas of more than one Kubernetes."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.crds import FOLDERS, KUBERNETES, RELEASES, is_custom
from tests.deploy.kustomize import CLUSTER_WIDE, Resource, render
from tests.waiting import EVENT_S


def validate(resource: Resource, release: str) -> None:
    """Raises a ValidationError, or SchemaNotFoundError for a kind that there is not."""
    kubernetes_validate.validate(resource, release, strict=True)


def find(kind: str, name: str, folder: str = "base") -> Resource:
    (found,) = (
        one
        for one in render(KUBERNETES / folder)
        if (one["kind"], one["metadata"]["name"]) == (kind, name)
    )
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_applied_is_valid(release: str) -> None:
    seen: list[Resource] = []
    for folder in FOLDERS:
        for resource in render(KUBERNETES / folder):
            if resource not in seen and not is_custom(resource):  # overlays change little
                validate(resource, release)
                seen.append(resource)
    assert {one["kind"] for one in seen} >= {"Deployment", "NetworkPolicy"}


def misspelt(deployment: Resource) -> None:
    spec = deployment["spec"]["template"]["spec"]
    spec["terminationGracePeriod"] = spec.pop("terminationGracePeriodSeconds")


def without_a_selector(deployment: Resource) -> None:
    del deployment["spec"]["selector"]


def with_a_number_for_text(deployment: Resource) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "SIGNALBOX_METRICS_PORT", "value": 9464})


@pytest.mark.parametrize("spoil", [misspelt, without_a_selector, with_a_number_for_text])
def test_a_wrong_deployment_is_found(spoil: Callable[[Resource], None]) -> None:
    deployment = find("Deployment", "worker")
    validate(deployment, RELEASES[-1])
    spoil(deployment)
    with pytest.raises(jsonschema.ValidationError):
        validate(deployment, RELEASES[-1])


def test_a_kind_of_another_group_is_found() -> None:
    scaler = find("HorizontalPodAutoscaler", "worker")
    scaler["apiVersion"] = "autoscaling/v2beta2"
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        validate(scaler, RELEASES[-1])


def test_the_overlay_for_cpus_is_the_base_without_gpus() -> None:
    base, cpu = (find("Deployment", "worker", folder) for folder in ("base", "cpu"))
    (of_base,), (of_cpu,) = (one["spec"]["template"]["spec"]["containers"] for one in (base, cpu))
    for kind in ("requests", "limits"):
        assert of_base["resources"][kind].pop("nvidia.com/gpu") == 1
    assert of_base.pop("image") == "registry.example/signalbox-gpu-worker-cuda:latest"
    assert of_cpu.pop("image") == "registry.example/signalbox-gpu-worker:latest"
    of_base, of_cpu = (
        {volume.pop("name"): volume for volume in one["spec"]["template"]["spec"].pop("volumes")}
        for one in (base, cpu)
    )
    assert of_base.pop("cache") == {"persistentVolumeClaim": {"claimName": "worker-cache"}}
    assert of_cpu.pop("cache") == {"emptyDir": {}}
    assert (base, of_base) == (cpu, of_cpu)


@pytest.mark.parametrize("folder", FOLDERS)
def test_everything_is_in_our_namespace(folder: str) -> None:
    for one in render(KUBERNETES / folder):
        expected = None if one["kind"] in CLUSTER_WIDE else "signalbox"
        assert one["metadata"].get("namespace") == expected


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubectl_renders_the_same(folder: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", str(KUBERNETES / folder)],
        capture_output=True,
        text=True,
        timeout=EVENT_S,
    )
    assert done.returncode == 0, done.stderr
    ours, theirs = render(KUBERNETES / folder), list(yaml.safe_load_all(done.stdout))
    for resources in (ours, theirs):
        resources.sort(key=lambda one: (one["kind"], one["metadata"]["name"]))
    assert ours == theirs


def test_what_cannot_be_rendered_is_refused(tmp_path: Path) -> None:
    header = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: []\n"
    (tmp_path / "kustomization.yaml").write_text(header + "namePrefix: my-\n")
    with pytest.raises(ValueError, match="namePrefix"):
        render(tmp_path)
