"""The manifests fit each other, and fit what the services take, serve and believe."""

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from signalbox import cli
from signalbox.settings.loading import load
from signalbox_router.apis.inference.servicer import SERVICE_NAME as ROUTER_SERVICE
from signalbox_router.config import RouterSettings
from signalbox_rpc.interceptors.peer_roles import ROLES, PeerNames
from signalbox_rpc.transport.listening_ports import check_exposure
from signalbox_scheduler.config import SchedulerSettings
from signalbox_scheduler.main import REGISTRY_SERVICE, SCHEDULER_SERVICE
from signalbox_worker.service.servicer import SERVICE_NAME as WORKER_SERVICE
from signalbox_worker.service.worker_settings import WorkerSettings
from tests.deploy.crds import FOLDERS, KUBERNETES
from tests.deploy.kustomize import Resource, render
from tests.deploy.test_observability import DASHBOARD

FOLDER = KUBERNETES / "base"
NAME = "app.kubernetes.io/name"
SETTINGS = {"router": RouterSettings, "scheduler": SchedulerSettings, "worker": WorkerSettings}
PORTS = {"router": {50051, 8000}, "scheduler": {50052}, "worker": {50053}}
METRICS_PORT = 9464
FIELDS = {field for settings in SETTINGS.values() for field in settings.model_fields}


def kustomization(folder: Path = FOLDER) -> Resource:
    content: Resource = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return content


rendered = functools.cache(render)
"""The resources of a folder, not to be changed."""


def resources(kind: str, folder: Path = FOLDER) -> dict[str, Resource]:
    return {one["metadata"]["name"]: one for one in rendered(folder) if one["kind"] == kind}


def pod(role: str) -> Resource:
    spec: Resource = resources("Deployment")[role]["spec"]["template"]["spec"]
    return spec


def container(role: str) -> Resource:
    (only,) = pod(role)["containers"]
    return dict(only)


def environment(role: str) -> dict[str, str]:
    """Returns what the container sees: the image's own, the ConfigMap's, its own."""
    (source,) = container(role)["envFrom"]
    literals = resources("ConfigMap")[source["configMapRef"]["name"]]["data"]
    image = {"SIGNALBOX_HOST": "0.0.0.0"}
    if role == "worker":
        image["SIGNALBOX_PORT"] = "50053"
    return {**image, **literals, **{one["name"]: one["value"] for one in container(role)["env"]}}


def test_every_manifest_is_applied() -> None:
    for folder in FOLDERS:
        named = kustomization(KUBERNETES / folder)
        applied = {*named["resources"], *named.get("configurations", ()), "kustomization.yaml"}
        not_ours = {"prometheus-adapter.yaml"}  # values of a chart
        files = {path.name for path in (KUBERNETES / folder).glob("*.yaml")}
        assert files - not_ours == applied - {"../base"}


@pytest.mark.parametrize("role", SETTINGS)
def test_a_service_takes_its_flags_and_environment_and_may_listen(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(role).items():
        monkeypatch.setenv(name, value)
        field = name.removeprefix("SIGNALBOX_").lower()
        assert field in FIELDS, name
    flags = vars(cli.make_parser().parse_args([role, *container(role).get("args", ())]))
    settings = load(SETTINGS[role], {name: flags[name] for name in flags.keys() & FIELDS})
    ports = {port["containerPort"] for port in container(role)["ports"]}
    assert isinstance(settings, RouterSettings | SchedulerSettings | WorkerSettings)
    port = settings.grpc_port if isinstance(settings, RouterSettings) else settings.port
    assert {port, settings.metrics_port} <= ports
    assert ports == PORTS[role] | {METRICS_PORT}
    tls = settings.tls
    assert not tls.insecure
    check_exposure(f"0.0.0.0:{port}", tls, names_callers=role != "router")
    if not isinstance(settings, SchedulerSettings):
        address = settings.scheduler
        service = resources("Service")[address.partition(":")[0]]
        assert int(address.rpartition(":")[2]) in {one["port"] for one in service["spec"]["ports"]}


@pytest.mark.parametrize("role", SETTINGS)
def test_a_pod_may_do_no_more_than_serve(role: str) -> None:
    assert pod(role)["automountServiceAccountToken"] is False
    assert pod(role)["securityContext"]["runAsNonRoot"] is True
    may = container(role)["securityContext"]
    assert may["readOnlyRootFilesystem"] is True
    assert may["allowPrivilegeEscalation"] is False
    assert may["capabilities"] == {"drop": ["ALL"]}
    mounted = {one["name"] for one in container(role)["volumeMounts"]}
    assert mounted == {one["name"] for one in pod(role)["volumes"]}
    assert {"requests", "limits"} <= container(role)["resources"].keys()


@pytest.mark.parametrize("role", SETTINGS)
def test_a_pod_is_given_the_time_that_its_drain_takes(role: str) -> None:
    (_, seconds) = container(role)["lifecycle"]["preStop"]["exec"]["command"]
    drain_s = float(environment(role)["SIGNALBOX_DRAIN_TIMEOUT"]) + int(seconds)
    assert pod(role)["terminationGracePeriodSeconds"] >= drain_s + 10


def test_probes_ask_for_health_that_does_not_wait_for_others() -> None:
    known = {ROUTER_SERVICE, SCHEDULER_SERVICE, REGISTRY_SERVICE, WORKER_SERVICE}
    for role in SETTINGS:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            command = container(role).get(kind, {}).get("exec", {}).get("command", [])
            assert command[:2] in ([], ["signalbox", "health"])
            assert set(command[3:]) <= known
    # A router without a worker, or a scheduler without one, is no better after a restart; and
    # workers could not reach a scheduler that is not ready before it has one.
    assert "tcpSocket" in container("router")["livenessProbe"]
    for kind in ("readinessProbe", "livenessProbe"):
        assert container("scheduler")[kind]["exec"]["command"][-1] == REGISTRY_SERVICE


def test_a_certificate_lets_its_service_be_what_it_is_and_nothing_else() -> None:
    certificates = resources("Certificate")
    issuers = resources("Issuer")
    for role in ROLES:
        spec = certificates[role]["spec"]
        can_be = {one for one in ROLES if PeerNames().find(one, spec["dnsNames"])}
        assert can_be == {role}
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert "127.0.0.1" in spec["ipAddresses"]
        assert issuers[spec["issuerRef"]["name"]]["spec"]["ca"]["secretName"] == "authority"
    for role in SETTINGS:
        (secret,) = [one["secret"] for one in pod(role)["volumes"] if "secret" in one]
        assert secret["secretName"] == certificates[role]["spec"]["secretName"]


def allowed(direction: str, role: str, peer: str, folder: Path) -> set[int]:
    """Returns the ports that policies open to a role, from or to a peer; "client" is any pod."""
    ports: set[int] = set()
    for policy in resources("NetworkPolicy", folder).values():
        spec = policy["spec"]
        if spec["podSelector"].get("matchLabels", {NAME: role}) != {NAME: role}:
            continue
        for rule in spec.get(direction, ()):
            peers = rule.get("from") or rule.get("to")
            names = [one.get("podSelector", {}).get("matchLabels") for one in peers or ()]
            if peers is None or {NAME: peer} in names:
                ports |= {one["port"] for one in rule["ports"]}
    return ports


def test_policies_allow_exactly_the_three_hops() -> None:
    nothing = resources("NetworkPolicy")["nothing"]["spec"]
    assert nothing["podSelector"] == {}
    assert nothing["policyTypes"] == ["Ingress", "Egress"]
    hops = {}
    for source, target in itertools.permutations(["client", *SETTINGS], 2):
        if target == "client":
            continue
        received = allowed("ingress", target, source, FOLDER)
        sent = received if source == "client" else allowed("egress", source, target, FOLDER)
        if received & sent:
            hops[source, target] = received & sent
    # A client may be in the cluster; what our own services send is bound as well.
    assert hops == {
        ("client", "router"): PORTS["router"],
        ("router", "scheduler"): PORTS["scheduler"],
        ("worker", "scheduler"): PORTS["scheduler"],
        ("scheduler", "worker"): PORTS["worker"],
    }


def test_monitoring_may_read_metrics_and_nothing_else() -> None:
    (policy,) = resources("NetworkPolicy", KUBERNETES / "monitoring").values()
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": METRICS_PORT}]
    monitors = resources("PodMonitor", KUBERNETES / "monitoring")
    assert monitors.keys() == SETTINGS.keys()
    for role, monitor in monitors.items():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ports = {one["name"]: one["containerPort"] for one in container(role)["ports"]}
        assert ports[endpoint["port"]] == METRICS_PORT
        assert monitor["spec"]["selector"]["matchLabels"] == {NAME: role}
        assert (
            endpoint["tlsConfig"]["serverName"]
            in resources("Certificate")[role]["spec"]["dnsNames"]
        )
        assert endpoint["relabelings"] == [
            {"targetLabel": "job", "replacement": f"signalbox-{role}"}
        ]


def test_selectors_select_the_pods_that_there_are() -> None:
    for role, deployment in resources("Deployment").items():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels == {NAME: role}
    budgets = resources("PodDisruptionBudget")
    assert budgets.keys() == SETTINGS.keys()
    for role, budget in budgets.items():
        assert budget["spec"]["selector"]["matchLabels"] == {NAME: role}
        assert budget["spec"]["maxUnavailable"] >= 1  # or nodes could not be drained
    for role, service in resources("Service").items():
        assert service["spec"]["selector"] == {NAME: role}
        names = {one["name"] for one in container(role)["ports"]}
        assert {one["targetPort"] for one in service["spec"]["ports"]} <= names


def test_autoscalers_go_by_metrics_that_there_are() -> None:
    adapter = yaml.safe_load((KUBERNETES / "monitoring" / "prometheus-adapter.yaml").read_text())
    offered = {rule["name"]["as"]: rule["seriesQuery"] for rule in adapter["rules"]["external"]}
    wanted = set()
    for role, scaler in resources("HorizontalPodAutoscaler").items():
        assert scaler["spec"]["scaleTargetRef"]["name"] == role
        assert "replicas" not in resources("Deployment")[role]["spec"]  # they would fight over it
        for metric in scaler["spec"]["metrics"]:
            if metric["type"] == "External":
                wanted.add(metric["external"]["metric"]["name"])
    assert wanted == offered.keys()
    dashboard = DASHBOARD.read_text()  # whose queries find their metrics
    assert all(re.search(rf"\b{series}\b", dashboard) for series in offered.values())


def test_workers_have_a_gpu_each_that_the_overlay_for_cpus_takes_away() -> None:
    of_worker = container("worker")["resources"]
    assert of_worker["requests"]["nvidia.com/gpu"] == of_worker["limits"]["nvidia.com/gpu"] == 1
    (patch,) = kustomization(KUBERNETES / "cpu")["patches"]
    for operation in yaml.safe_load(patch["patch"]):
        at: Any = resources("Deployment")["worker"]
        for step in operation["path"].split("/")[1:]:
            key = step.replace("~1", "/")
            at = at[int(key) if isinstance(at, list) else key]


def test_images_are_those_that_compose_builds() -> None:
    built = {
        service["image"]
        for name in ("compose.yaml", "compose.gpu.yaml")
        for service in yaml.safe_load((KUBERNETES.parent / name).read_text())["services"].values()
    }
    renamed = {
        image["name"]: f"{image['newName']}:{image['newTag']}"
        for image in kustomization()["images"]
    }
    assert {container(role)["image"] for role in SETTINGS} == set(renamed.values())
    assert renamed.keys() <= built
