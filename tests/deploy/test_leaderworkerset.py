"""The overlay with workers of several ranks fits the base, and what ranks need."""

import copy
from fnmatch import fnmatchcase
from typing import Any

import pytest

from signalbox import cli
from signalbox.settings.loading import load
from signalbox_rpc.interceptors.peer_roles import ROLES, WORKER, PeerNames
from signalbox_worker.runner.ranks.rank_network import read_place
from signalbox_worker.service.worker_settings import WorkerSettings
from tests.deploy.crds import KUBERNETES
from tests.deploy.kustomize import Resource
from tests.deploy.test_kubernetes import allowed, environment, pod, resources

FOLDER = KUBERNETES / "leaderworkerset"


def group() -> Resource:
    found: Resource = resources("LeaderWorkerSet", FOLDER)["worker"]["spec"]
    return found


def rank_pod() -> Resource:
    """Returns the pod of a rank, to be changed."""
    return copy.deepcopy(dict(group()["leaderWorkerTemplate"]["workerTemplate"]["spec"]))


def settings_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    """Returns what `signalbox worker` makes of the pod's flags and variables."""
    (container,) = rank_pod()["containers"]
    variables = {one["name"]: one.get("value", "10.1.2.3") for one in container["env"]}
    for name, value in {**environment("worker"), **variables}.items():
        monkeypatch.setenv(name, value)
    flags = vars(cli.make_parser().parse_args(["worker", *container["args"]]))
    return load(
        WorkerSettings, {name: flags[name] for name in flags.keys() & WorkerSettings.model_fields}
    )


def test_a_rank_is_the_worker_of_the_base_with_a_place_among_others() -> None:
    base, rank = copy.deepcopy(pod("worker")), rank_pod()
    (of_base,), (of_rank,) = base["containers"], rank["containers"]
    for name in ("args", "env", "ports"):
        before, after = of_base.pop(name), of_rank.pop(name)
        assert all(one in after for one in before)
    assert rank == base


def test_a_group_has_as_many_pods_as_the_worker_has_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    template, settings = group()["leaderWorkerTemplate"], settings_of_a_rank(monkeypatch)
    assert settings.placement == "environment"
    assert settings.rank_host == "10.1.2.3"  # the pod's own
    assert settings.parallel.num_ranks == template["size"] == 2
    place = read_place(
        {
            "LWS_WORKER_INDEX": "1",
            "LWS_GROUP_SIZE": str(template["size"]),
            "LWS_LEADER_ADDRESS": "worker-0.worker.signalbox",
        }
    )
    assert (place.rank, place.local_rank) == (1, 0)


def test_a_lost_rank_takes_its_group_along_and_all_have_the_time_of_a_drain() -> None:
    template = group()["leaderWorkerTemplate"]
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert "leaderTemplate" not in template  # the leader drains, the others wait for it as long
    assert group()["startupPolicy"] == "LeaderCreated"  # the leader waits for the others


def test_ranks_reach_each_other_at_the_ports_of_ranks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of_a_rank(monkeypatch)
    ports = range(settings.rank_port, settings.rank_port + settings.parallel.num_ranks)
    (policy,) = [resources("NetworkPolicy", FOLDER)["ranks"]["spec"]]
    for direction in ("ingress", "egress"):
        (rule,) = policy[direction]
        (opened,) = rule["ports"]
        assert range(opened["port"], opened["endPort"] + 1) == ports
        assert allowed(direction, "worker", "worker", FOLDER) == {opened["port"]}
    (container,) = rank_pod()["containers"]
    shown = {one["containerPort"] for one in container["ports"]}
    assert shown == {settings.port, settings.metrics_port, *ports}


def test_the_certificate_is_for_rank_0_of_each_group_and_for_no_other_role() -> None:
    names = resources("Certificate", FOLDER)["worker"]["spec"]["dnsNames"]
    assert {role for role in ROLES if PeerNames().find(role, names)} == {WORKER}
    manifest = resources("LeaderWorkerSet", FOLDER)["worker"]["metadata"]
    name, namespace = manifest["name"], manifest["namespace"]
    assert any(fnmatchcase(f"{name}-7.{name}.{namespace}", one) for one in names)


def test_the_scaler_and_the_budget_are_those_of_the_base_for_the_set() -> None:
    (base, ours) = (
        copy.deepcopy(resources("HorizontalPodAutoscaler", folder)["worker"])
        for folder in (KUBERNETES / "base", FOLDER)
    )
    target: dict[str, Any] = ours["spec"].pop("scaleTargetRef")
    del base["spec"]["scaleTargetRef"]
    assert ours == base
    made = resources("LeaderWorkerSet", FOLDER)[target["name"]]
    assert (made["apiVersion"], made["kind"]) == (target["apiVersion"], target["kind"])
    assert "replicas" not in made["spec"]  # they would fight over it
    assert "worker" not in resources("Deployment", FOLDER)
    labels = made["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
    budget = resources("PodDisruptionBudget", FOLDER)["worker"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["maxUnavailable"] == 1
