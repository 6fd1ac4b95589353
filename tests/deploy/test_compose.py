"""What the compose files promise of each container, and that they fit the rest of deploy/."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from signalbox_router.config import RouterConfig
from signalbox_rpc.http.host_check import HostCheck
from signalbox_rpc.metrics.registry import MetricsConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
OURS = {"router", "scheduler", "gpu-worker"}
FILES = sorted(DEPLOY.glob("compose*.yaml"))


def services(name: str) -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / name).read_text())["services"]
    return content


def all_containers() -> list[tuple[str, dict[str, Any]]]:
    whole = [*services("compose.yaml").items(), *services("compose.observability.yaml").items()]
    return [(name, service) for name, service in whole if "image" in service]


@pytest.mark.parametrize(("name", "service"), all_containers(), ids=lambda value: str(value)[:20])
def test_each_container_is_held_to_what_it_needs(name: str, service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["restart"] == "unless-stopped"
    assert service["mem_limit"]
    assert service["pids_limit"]
    if name not in OURS:
        assert service["image"].rpartition(":")[2] not in ("", "latest"), "pin a version"
    for port in service.get("ports", ()):
        assert port.startswith(("127.0.0.1:", "${")), "not for other machines by default"


def test_only_the_router_of_ours_is_published() -> None:
    assert {name for name, one in services("compose.yaml").items() if "ports" in one} == {"router"}


def test_our_containers_run_as_a_user_without_rights() -> None:
    stages = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")
    runtime = next(stage for stage in stages if stage.partition("\n")[0].endswith("AS runtime"))
    assert "USER signalbox" in runtime
    for target in OURS:
        (stage,) = [one for one in stages if one.partition("\n")[0].endswith(f"AS {target}")]
        assert stage.startswith("runtime AS ")
        users = [line for line in stage.splitlines() if line.startswith("USER ")]
        assert users[-1:] in ([], ["USER signalbox"])


def test_prometheus_scrapes_each_of_our_services_where_it_answers() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    scraped = {}
    for job in config["scrape_configs"]:
        (where,) = job["dns_sd_configs"]
        scraped |= dict.fromkeys(where["names"], where["port"])
    ports = {
        name: int(service["environment"]["SIGNALBOX_METRICS_PORT"])
        for name, service in (
            services("compose.embeddings.yaml") | services("compose.yaml")
        ).items()
    }
    assert scraped == ports
    assert ports.keys() == OURS | {"embedding-scheduler", "embedding-worker"}


def test_each_of_our_services_answers_for_its_own_name_and_not_for_any() -> None:
    for name, service in services("compose.yaml").items():
        allowed = service["environment"]["SIGNALBOX_ALLOWED_HOSTS"].replace(
            "${ALLOWED_HOSTS:-}", ""
        )
        config = MetricsConfig(allowed_hosts=tuple(filter(None, allowed.split(","))))
        check = HostCheck(config.allowed_hosts, is_loopback=False)
        for host in (f"{name}:9464", "localhost:8000", "172.18.0.4:9464"):
            assert check.answers(host, "172.18.0.4")
        assert not check.answers("evil.example", "172.18.0.4")


def test_ours_send_their_spans_to_the_collector_that_there_is() -> None:
    observability = services("compose.observability.yaml")
    collector = yaml.safe_load((DEPLOY / "otel" / "collector.yaml").read_text())
    port = collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].rpartition(":")[2]
    for name in OURS:
        environment = observability[name]["environment"]
        assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://otel-collector:{port}"
    exporter = collector["exporters"]["otlp/jaeger"]["endpoint"]
    assert exporter.partition(":")[0] in observability


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_mounted_from_here_exists(path: Path) -> None:
    for service in yaml.safe_load(path.read_text())["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), volume


def test_the_guide_names_each_file_and_each_variable_and_the_first_file_names_the_others() -> None:
    guide = (DEPLOY.parent / "docs" / "how_to" / "install.md").read_text()
    named = {f"deploy/{path.name}" for path in FILES}
    assert set(re.findall(r"-f (deploy/compose\S*)", FILES[-1].read_text())) == named
    for path in FILES:
        text = path.read_text()
        taken = [
            name
            for service in yaml.safe_load(text)["services"].values()
            for name, value in service.get("environment", {}).items()
            if value is None  # of the caller's environment
        ]
        variables = {f"`{name}`" for name in (*taken, *re.findall(r"\$\{(\w+)", text))}
        assert not [name for name in variables if name not in guide], path.name
    assert all(name in guide for name in named)


def test_grafanas_data_sources_are_those_that_the_dashboard_and_exemplars_name() -> None:
    provisioned = DEPLOY / "grafana" / "provisioning" / "datasources" / "signalbox.yaml"
    sources = {one["uid"]: one for one in yaml.safe_load(provisioned.read_text())["datasources"]}
    (destination,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert destination["datasourceUid"] in sources
    for one in sources.values():
        assert one["url"].split("/")[2].partition(":")[0] in services("compose.observability.yaml")


def test_the_embedding_model_is_behind_the_same_router() -> None:
    added, whole = services("compose.embeddings.yaml"), services("compose.yaml")
    for name, like in (("embedding-scheduler", "scheduler"), ("embedding-worker", "gpu-worker")):
        assert (
            added[name].items()
            >= {
                field: whole[like][field]
                for field in (
                    "image",
                    "restart",
                    "read_only",
                    "cap_drop",
                    "security_opt",
                    "pids_limit",
                )
            }.items()
        )
        assert added[name]["mem_limit"] and "ports" not in added[name]
        assert name in added[name]["environment"]["SIGNALBOX_ALLOWED_HOSTS"]
    given, chosen = (
        RouterConfig(scheduler=one["router"]["command"][2]).scheduler_addresses
        for one in (whole, added)
    )
    assert chosen == (*given, "embedding-scheduler:50052")
    assert added["embedding-worker"]["command"][1:3] == ["--scheduler", chosen[-1]]
