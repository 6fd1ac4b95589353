"""The overlays for KubeRay fit the base, Ray, and what ranks need."""

import re
import shlex
from typing import Any

import pytest

from signalbox import cli
from signalbox.settings.loading import load
from signalbox_worker.service.worker_settings import WorkerSettings
from tests.deploy.crds import KUBERNETES
from tests.deploy.kustomize import Resource
from tests.deploy.test_kubernetes import allowed, environment, pod, resources

FOLDER, JOB = KUBERNETES / "kuberay", KUBERNETES / "rayjob"
RAY_PORTS = range(6379, 6384), range(10002, 10101)
"""GCS and the processes of a node; workers of Ray and drivers."""


def cluster() -> Resource:
    found: Resource = resources("RayCluster", FOLDER)["worker"]["spec"]
    return found


def head() -> Resource:
    found: Resource = cluster()["headGroupSpec"]["template"]["spec"]
    return found


def stages() -> Resource:
    (group,) = cluster()["workerGroupSpecs"]
    return dict(group)


def settings_of(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    """Returns what `signalbox worker` makes of the flags and of the environment of the head's
    containers."""
    for container in head()["containers"]:
        own = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        for name, value in {**environment("worker"), **own}.items():
            monkeypatch.setenv(name, value)
    flags = vars(cli.make_parser().parse_args(["worker", *arguments]))
    return load(
        WorkerSettings, {name: flags[name] for name in flags.keys() & WorkerSettings.model_fields}
    )


def of_driver(monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    return settings_of(head()["containers"][1]["args"], monkeypatch)


def of_job(monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    command, *arguments = shlex.split(
        resources("RayJob", JOB)["second-worker"]["spec"]["entrypoint"]
    )
    assert (command, arguments.pop(0)) == ("signalbox", "worker")
    return settings_of(arguments, monkeypatch)


def test_each_stage_has_a_node_and_the_head_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, group = of_driver(monkeypatch), stages()
    assert settings.placement == "ray"
    assert settings.device == "cuda"  # nodes without GPUs, which come later, are not taken
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    assert group["replicas"] == settings.parallel.pipeline_parallel_size == 2
    (container,) = group["template"]["spec"]["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == settings.parallel.tensor_parallel_size
    assert cluster()["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_driver_shares_with_the_head_what_it_finds_ray_by() -> None:
    ray, driver = head()["containers"]  # KubeRay takes the first for Ray's
    assert head()["shareProcessNamespace"] is True
    assert all({"name": "tmp", "mountPath": "/tmp"} in one["volumeMounts"] for one in (ray, driver))
    token = next(one for one in driver["env"] if one["name"] == "RAY_AUTH_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "worker", "key": "auth_token"}
    assert cluster()["authOptions"] == {"mode": "token"}
    assert ray["envFrom"] == driver["envFrom"]
    assert ray["envFrom"][0]["configMapRef"]["name"] in resources("ConfigMap", FOLDER)


def test_nodes_and_drivers_find_certificates_at_the_same_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = of_driver(monkeypatch)
    assert settings.tls == of_job(monkeypatch).tls
    assert settings.tls.identifies_clients
    for spec in (head(), stages()["template"]["spec"]):
        (secret,) = [one["secret"] for one in spec["volumes"] if "secret" in one]
        assert secret["secretName"] == "worker-tls"
        for container in spec["containers"]:
            assert {"name": "tls", "mountPath": "/tls", "readOnly": True} in container[
                "volumeMounts"
            ]


def test_a_stage_may_do_what_the_worker_of_the_base_may() -> None:
    base, spec = pod("worker"), stages()["template"]["spec"]
    for name in ("automountServiceAccountToken", "enableServiceLinks", "securityContext"):
        assert spec[name] == head()[name] == base[name]
    (of_base,), (of_stage,) = base["containers"], spec["containers"]
    assert of_stage["resources"] == of_base["resources"]
    for container in (of_stage, *head()["containers"]):
        assert container["securityContext"] == of_base["securityContext"]
    shared = [one for one in of_base["volumeMounts"] if one["name"] != "shm"]  # KubeRay adds it
    assert of_stage["volumeMounts"] == shared
    labels = stages()["template"]["metadata"]["labels"]
    assert labels == resources("Deployment")["worker"]["spec"]["template"]["metadata"]["labels"]


def test_ray_listens_where_its_policy_lets_it_be_called() -> None:
    (policy,) = [resources("NetworkPolicy", FOLDER)["ray"]["spec"]]
    assert policy["podSelector"]["matchLabels"] == {"ray.io/cluster": "worker"}
    for direction, peer in (("ingress", "from"), ("egress", "to")):
        (rule,) = policy[direction]
        assert rule[peer] == [{"podSelector": policy["podSelector"]}]
        assert [range(one["port"], one["endPort"] + 1) for one in rule["ports"]] == list(RAY_PORTS)
    for group in (cluster()["headGroupSpec"], stages()):
        params = {
            name: int(value)
            for name, value in group["rayStartParams"].items()
            if name.endswith("-port")
        }
        workers = range(params.pop("min-worker-port"), params.pop("max-worker-port") + 1)
        assert workers == RAY_PORTS[1]
        assert {RAY_PORTS[0][0], *params.values()} == set(RAY_PORTS[0])


def test_ranks_of_both_workers_reach_each_other_at_ports_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = [of_driver(monkeypatch), of_job(monkeypatch)]
    taken = [range(one.rank_port, one.rank_port + one.parallel.num_ranks) for one in both]
    assert taken == [range(50100, 50102), range(50102, 50104)]
    for direction in ("ingress", "egress"):
        assert allowed(direction, "worker", "worker", FOLDER) == {50100}
        (rule,) = resources("NetworkPolicy", FOLDER)["ranks"]["spec"][direction]
        assert rule["ports"] == [{"port": 50100, "endPort": 50103}]


def test_a_job_runs_on_the_head_which_only_kuberay_submits_to() -> None:
    job: dict[str, Any] = resources("RayJob", JOB)["second-worker"]["spec"]
    assert job["clusterSelector"]["ray.io/cluster"] in resources("RayCluster", FOLDER)
    assert "backoffLimit" not in job  # which KubeRay refuses on a cluster of others
    (policy,) = resources("NetworkPolicy", JOB).values()
    assert policy["spec"]["podSelector"]["matchLabels"]["ray.io/node-type"] == "head"
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": 8265}]
    variables = {one["name"]: one["value"] for one in head()["containers"][0]["env"]}
    drain_s = float(environment("worker")["SIGNALBOX_DRAIN_TIMEOUT"])
    assert float(variables["RAY_JOB_STOP_WAIT_TIME_S"]) >= drain_s + 10


def test_the_image_has_the_ray_that_the_cluster_names() -> None:
    dockerfile = (KUBERNETES.parent / "Dockerfile").read_text()
    (version,) = re.findall(r"--build-arg RAY_VERSION=(\d+\.\d+\.\d+)", dockerfile)
    assert cluster()["rayVersion"] == version
    containers = [*head()["containers"], *stages()["template"]["spec"]["containers"]]
    assert len({one["image"] for one in containers}) == 1


def test_what_a_ray_cluster_has_no_scale_for_is_left_out() -> None:
    for kind in ("Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget"):
        assert "worker" not in resources(kind, FOLDER)
        assert "router" in resources(kind, FOLDER)
