"""Every query of the shipped dashboard and rules asks for metrics, and labels, that there are."""

import asyncio
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from prometheus_client.core import Metric

from signalbox_contract.errors import Unavailable
from signalbox_contract.model import Adapter
from signalbox_contract.step_result import StageTimings
from signalbox_router.schedulers.launcher.launched_models import LaunchedModel
from signalbox_rpc.metrics.registry import make_registry
from signalbox_scheduler.service.reports import metrics
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.runner.ranks.rank_samples import of_rank
from tests.deploy.promql import asked
from tests.integration.stack import running_router, running_scheduler, running_worker, simulated
from tests.integration.test_stack import SchedulerConfig, ask, make_request, open_channel, pb_grpc
from tests.router.schedulers.launcher.test_model_starts import ScriptedLauncher, make_starts
from tests.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
RULE_FILES = [DEPLOY / "prometheus" / name for name in ("rules.yaml", "alerts.yaml")]
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "signalbox.json"
REFERENCE = DEPLOY.parent / "docs" / "reference" / "metrics.md"
OURS = re.compile("signalbox_|gen_ai_")
OPERATIONS = DEPLOY.parent / "docs" / "how_to" / "operate.md"
OF_PROMETHEUS = {"job", "instance", "le"}

SQL = Adapter(name="sql", sha256="a1" * 32)

Labels = dict[str, set[str]]
"""Of each metric's samples, by name."""


def labels_of(families: Iterable[Metric]) -> Labels:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for family in families:
        for sample in family.samples:
            found[sample.name] |= sample.labels.keys() | OF_PROMETHEUS
    return dict(found)


async def collect() -> list[Metric]:
    """Returns what three services and a rank show after answers, and a refusal by each of the two
    doors."""
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(
            scheduler.address,
            simulated(num_gpu_blocks=8, num_store_blocks=8, adapters=(SQL,), stages=(1, 1)),
        ) as worker,
        running_router(scheduler.address, http=True, http_port=0) as router,
        open_channel(router.server.address) as channel,
    ):
        stub = pb_grpc.InferenceServiceStub(channel)
        await ask(stub, make_request([1, 2, 3], max_tokens=4))
        for wrong in (make_request([1], top_p=7), make_request([1] * 100, max_tokens=400)):
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(stub, wrong)
        drafts = SpeculationConfig(num_tokens=1)
        of_one_stage = simulated(  # as those that exchange KV, or draft
            num_gpu_blocks=8, adapters=(SQL,), speculation=drafts
        )
        others = [running_worker(scheduler.address, of_one_stage) for _ in range(2)]
        async with others[0], others[1]:
            await eventually(lambda: len(scheduler.cluster.step_loops) == 3)
            starts = make_starts(ScriptedLauncher(Unavailable("lost", 1)), LaunchedModel(name="a"))
            with pytest.raises(Unavailable):
                await starts.wait("a")
            registries = (
                router.registry,
                make_registry(starts.samples),
                make_registry(lambda: metrics.samples(scheduler.cluster)),
                make_registry(worker.worker.samples),
                make_registry(partial(of_rank, StageTimings(), rank=1, stage=0)),
            )
            return [family for registry in registries for family in registry.collect()]


@pytest.fixture(scope="module")
def shown() -> list[Metric]:
    return asyncio.run(collect())


@pytest.fixture(scope="module")
def known(shown: list[Metric]) -> Labels:
    """What is shown, and what the rules make of it."""
    labels = labels_of(shown)
    recorded = {rule["record"]: {"model_name", "code"} for rule in rules() if "record" in rule}
    return {**labels, **recorded, "up": set(OF_PROMETHEUS)}


def rules() -> Iterator[dict[str, Any]]:
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def queries() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert found is not None
            yield f'{found[1]}{{{found[2]}=""}}'


def missing(expression: str, known: Labels) -> set[str]:
    """Returns the metrics, and the labels of metrics, that an expression asks for in vain."""
    found = asked(expression)
    grouped = found.pop("", set())
    in_vain = {name for name in found if name not in known}
    for name in found.keys() - in_vain:
        in_vain |= {f"{name}{{{label}}}" for label in found[name] - known[name]}
    all_labels = {label for name in found.keys() - in_vain for label in known.get(name, ())}
    return in_vain | (grouped - all_labels)


@pytest.mark.parametrize("expression", sorted(set(queries())))
def test_each_query_of_the_dashboard_finds_its_metrics(expression: str, known: Labels) -> None:
    assert not missing(expression, known)


@pytest.mark.parametrize(
    "rule", list(rules()), ids=lambda rule: rule.get("record") or rule["alert"]
)
def test_each_rule_finds_its_metrics(rule: dict[str, Any], known: Labels) -> None:
    assert not missing(rule["expr"], known)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(signalbox_made_up_total[5m])", {"signalbox_made_up_total"}),
        ('signalbox_requests_total{colour="red"}', {"signalbox_requests_total{colour}"}),
        ("sum by (colour) (rate(signalbox_requests_total[5m]))", {"colour"}),
        ('sum(up{job=~"a{b}"}) / clamp_min(signalbox_gone, 1)', {"signalbox_gone"}),
    ],
)
def test_a_query_for_what_there_is_not_is_found(
    expression: str, expected: set[str], known: Labels
) -> None:
    assert missing(expression, known) == expected


def test_nothing_is_shown_that_no_panel_and_no_rule_looks_at(known: Labels) -> None:
    """What no query asks for need not be counted; what is listed here is for queries of users."""
    texts = [*queries(), *(rule["expr"] for rule in rules())]
    used = {family_of(name) for text in texts for name in asked(text)}
    shown = {family_of(name) for name in known if name.startswith("signalbox_")}
    assert shown - used == {
        # Which responses a router keeps, and which it had to drop.
        "signalbox_stored_response_bytes",
        "signalbox_stored_responses",
        "signalbox_stored_responses_dropped_total",
        # What vLLM shows too, and clients of its page look for.
        "signalbox_cache_config_info",
        "signalbox_lora_requests_info",
        "signalbox_num_requests_waiting_by_reason",
        "signalbox_request_inference_time_seconds",
        "signalbox_migration_bytes_total",
        "signalbox_request_num_preemptions",
        "signalbox_request_params_max_tokens",
        "signalbox_request_params_n",
        "signalbox_num_numerics_changes_total",
        "signalbox_copy_bytes_per_second",
        "signalbox_kv_store_bytes_per_second",
        "signalbox_prefill_tokens_per_second",
        "signalbox_prefill_tokens_total",
        "signalbox_spec_decode_num_accepted_tokens_per_pos_total",
        "signalbox_step_phase_seconds_total",
        "signalbox_num_gpu_blocks",
        "signalbox_request_max_num_generation_tokens",  # vLLM's dashboard does
        "signalbox_num_cpu_blocks",
        "signalbox_worker_gpu_blocks",
        "signalbox_worker_cpu_blocks",
        "signalbox_worker_failures_total",
        "signalbox_worker_kv_peer_moves",
        "signalbox_worker_kv_store_blocks",
        "signalbox_worker_kv_store_bytes",
        "signalbox_worker_kv_store_capacity_bytes",
        "signalbox_worker_kv_store_errors_total",
        "signalbox_worker_kv_store_evictions_total",
        "signalbox_worker_kv_store_open",
        "signalbox_worker_lease",
        "signalbox_worker_rank_info",
        "signalbox_worker_rank_phase_seconds_total",
        "signalbox_worker_sampled_tokens_total",
        "signalbox_worker_stage_boundary_bytes_total",
        "signalbox_worker_stage_boundary_seconds_total",
        "signalbox_worker_step_duration_seconds",
    }


def family_of(sample: str) -> str:
    return re.sub(r"_(bucket|sum|count|created)$", "", sample)


def test_the_metrics_of_vllms_dashboard_are_shown(known: Labels) -> None:
    """Those that its Grafana example asks for; --metrics-prefix vllm gives them its prefix."""
    histograms = (
        "e2e_request_latency_seconds",
        "inter_token_latency_seconds",
        "time_to_first_token_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_max_num_generation_tokens",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
    )
    others = (
        "prompt_tokens_total",
        "generation_tokens_total",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "request_success_total",
    )
    asked_for = {f"signalbox_{name}_{part}" for name in histograms for part in ("bucket", "sum")}
    asked_for |= {f"signalbox_{name}" for name in others}
    assert asked_for <= known.keys()
    assert all("model_name" in known[name] for name in asked_for)
    assert "finished_reason" in known["signalbox_request_success_total"]


def test_the_operations_page_says_of_each_alert_what_it_means() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    explained = set(re.findall(r"^### (Signalbox\w+)$", OPERATIONS.read_text(), re.MULTILINE))
    assert explained == alerts


def promtool(*arguments: str) -> None:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    subprocess.run([found, *arguments], check=True, stdout=subprocess.DEVNULL)


def test_prometheus_accepts_configuration_and_rules() -> None:
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yaml"))


def test_each_alert_is_raised_when_it_should_be_and_not_otherwise() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    cases = Path(__file__).with_name("alerts_test.yaml")
    assert alerts == set(re.findall(r'alertname="(\w+)"', cases.read_text()))
    promtool("test", "rules", str(cases))


def row_of(family: Metric) -> str:
    """Returns the row of the reference, whose meaning is the HELP text."""
    name = family.name.removeprefix("signalbox_") + ("_total" if family.type == "counter" else "")
    found = {label for sample in family.samples for label in sample.labels} - {"le"}
    labels = ", ".join(f"`{label}`" for label in sorted(found))
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def test_the_reference_has_each_metric_in_the_words_of_its_help(shown: list[Metric]) -> None:
    listed = re.findall(r"^\| `.* \|$", REFERENCE.read_text(), re.MULTILINE)
    assert set(listed) == {row_of(family) for family in shown if OURS.match(family.name)}
