"""Draws `signalbox top` in 80 columns: the scheduler, each worker, live requests, sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from signalbox.client.tables import make_table, right
from signalbox.commands.inspect.load_rates import (
    LauncherLoad,
    LoadRates,
    QuarantinedWorker,
    RequestLoad,
    WorkerLoad,
)
from signalbox.commands.inspect.readings import Quantiles, Readings
from signalbox.commands.inspect.session_use import session_table
from signalbox.commands.inspect.stage_use import stage_table
from signalbox_contract.wording import counted

BAR_WIDTH = 20
_PLACES = {"local": "on this machine", "ray": "on Ray"}


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a line: words around it, the name of its samples, and their labels."""

    words: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    share_of: str = ""
    """Name of the samples of which it is shown as a share; empty for the number itself."""


LINES: dict[str, tuple[Number, ...]] = {
    "{tier}": (
        Number("hit rate so far {}", "kv_store_hits", share_of="kv_store_queries"),
        Number("{} in", "kv_store_bytes", {"direction": "in"}),
        Number("{} out", "kv_store_bytes", {"direction": "out"}),
        Number("{} failed", "kv_store_failures"),
        Number("{} late", "kv_transfer_timeouts"),
        Number("{} loading", "num_requests_loading"),
    ),
    "drafts so far": (
        Number("{}", "spec_decode_num_draft_tokens"),
        Number(
            "kept {}",
            "spec_decode_num_accepted_tokens",
            share_of="spec_decode_num_draft_tokens",
        ),
    ),
    "migrated so far": (
        Number("{} out", "migrations", {"result": "out"}),
        Number("{} in", "migrations", {"result": "in"}),
        Number("{} aborted", "migrations", {"result": "aborted"}),
        Number("paused {}", "migration_pause_seconds"),
    ),
}
"""Numbers of a worker by title, if any is not 0; a title that names a label has a line for each
value."""
CLUSTER_LINES: dict[str, tuple[Number, ...]] = {
    "audits so far": (
        Number("{} equal", "audits_equal"),
        Number("{} different", "audits_different"),
    ),
    "{source}": (
        Number("suspected in {} audits", "audits_different"),
        Number("taken out of use {}x", "audit_sources_avoided"),
    ),
}
"""The same of all workers together."""


def _part_lines(samples: Readings, titles: Mapping[str, tuple[Number, ...]]) -> list[str]:
    """Returns the lines that have a number to show."""
    lines = []
    for title, numbers in titles.items():
        label = title.strip("{}") if title.startswith("{") else ""
        found = [one for number in numbers for one in samples.find(number.name)]
        for value in dict.fromkeys(one.labels.get(label, "") for one in found):
            labels = {label: value} if label else {}
            texts = filter(None, [_text(number, samples, labels) for number in numbers])
            if text := "  ".join(texts):
                lines.append(f"{title.format(**labels)}: {text}")
    return lines


def _text(number: Number, samples: Readings, labels: dict[str, str]) -> str:
    found = samples.find(number.name, **labels, **number.labels)
    whole = samples.total(number.share_of or number.name, **labels, **number.labels)
    if not whole:
        return ""
    value = sum(one.value for one in found)
    if number.share_of:
        text = f"{value / whole:.0%}"
    elif number.name.endswith("_bytes"):
        text = f"{sum(one.per_s or 0.0 for one in found) / 1e6:,.1f} MB/s"
    elif number.name.endswith("_seconds"):
        text = quantiles_text(found.quantiles(number.name))
    else:
        text = f"{value:,.0f}"
    return number.words.format(text) if text else ""


def quantiles_text(values: Quantiles) -> str:
    """Returns the median and the 99th percentile; empty while there are none."""
    if values.p50_s is None or values.p99_s is None:
        return ""
    return f"{time_text(values.p50_s)} (p99 {time_text(values.p99_s)})"


def time_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def render(
    load: LoadRates | None, address: str, *, problem: str = "", note: str = ""
) -> RenderableType:
    """Returns the screen; dimmed and with the reason while there are no new numbers.

    Args:
        note: text at the end of the first line.
    """
    head = Text.assemble(("signalbox top", "bold"), f"  {address}")
    if problem:
        head.append(f"  {problem}", style="bold red")
    if load is None:
        return head
    head.append(f"  {load.model_name}", style="bold cyan")
    head.append(f"  up {timedelta(seconds=int(load.uptime_s))}{note}")
    panels = [_worker(worker, style="dim" if problem else "") for worker in load.workers]
    missing = [Text("no worker is there", style="yellow")] if not panels else []
    kept_out = [_quarantined(one) for one in load.quarantined_workers]
    style = "bold red" if load.samples.total("audits_different") else ""
    audits = [Text(line, style=style) for line in _part_lines(load.samples, CLUSTER_LINES)]
    requests = [_requests(load.requests)] if load.requests else []
    sessions = [session_table(load.sessions)] if load.sessions else []
    launcher = [_launcher(load.launcher)] if load.launcher else []
    own = [*audits, *launcher, *missing]
    return Group(head, _cluster(load), *own, *panels, *kept_out, *requests, *sessions)


def _launcher(launcher: LauncherLoad) -> Text:
    workers = counted(launcher.num_workers, "worker")
    place = _PLACES.get(launcher.placement, launcher.placement)
    shown = Text(f"signalbox serve keeps {workers} running {place}")
    for name, reason in launcher.pending.items():
        text = reason if reason.startswith(name) else f"{name}: {reason}"
        shown.append(f"\n{text}", style="yellow")
    return shown


def _quarantined(worker: QuarantinedWorker) -> Text:
    return Text(
        f"{worker.address}  quarantined: failed {worker.num_failures} times, may join again in"
        f" {worker.left_s:.0f} s",
        style="bold red",
    )


def _cluster(load: LoadRates) -> Text:
    waiting = (f"waiting {load.num_waiting}", "bold yellow" if load.num_waiting else "")
    ended = ", ".join(f"{name.lower()} {count:,}" for name, count in sorted(load.num_ended.items()))
    refused = sum(load.num_refused.values())
    return Text.assemble(
        waiting,
        _known(" (queued {})", load.queue_time),
        f"  running {load.num_running}  swapped {load.num_swapped}",
        f"\n{load.requests_per_s:,.1f} requests/s  {load.generated_tokens_per_s:,.0f} tokens/s",
        f"  ended: {ended or 'none'}",
        (f"  refused {refused:,}" if refused else "", "red"),
    )


def _worker(worker: WorkerLoad, *, style: str) -> Panel:
    rows = Table.grid(padding=(0, 2))
    rows.add_row("KV", _bar(worker.num_used_gpu_blocks, worker.num_gpu_blocks), _kv(worker))
    if worker.num_cpu_blocks:
        used, total = worker.num_used_cpu_blocks, worker.num_cpu_blocks
        rows.add_row("swap", _bar(used, total), f"{used:,} of {total:,} blocks")
    rate = worker.prefix_hit_rate
    hits = "" if rate is None else f", {rate:.0%} found in the cache"
    first_token = _known("first token {}", worker.time_to_first_token)
    each_token = _known("each token {}", worker.time_per_output_token)
    latencies = "  ".join(filter(None, (first_token, each_token)))
    lines = (
        *([f"KV of {worker.groups}"] if worker.groups else []),
        f"{worker.generated_tokens_per_s:,.0f} tokens/s generated"
        f"  {worker.prefill_tokens_per_s:,.0f} tokens/s prefilled{hits}",
        f"{worker.steps_per_s:,.1f} steps/s" + _known(" of {}", worker.step),
        *_shares(worker),
        *_part_lines(worker.samples, LINES),
        *([latencies] if latencies else []),
        f"preempted {worker.preemptions_per_s:,.1f}/s"
        f"  (so far {worker.num_swaps:,} by swap, {worker.num_recomputes:,} by recompute)",
    )
    state = "" if worker.role == "both" else f"  {worker.role}"
    if worker.is_draining:
        state += "  draining"
    if worker.num_failures:
        state += f"  failed {worker.num_failures}x"
    title = f"{worker.address}  running {worker.num_running}  swapped {worker.num_swapped}{state}"
    stages = [stage_table(worker.stages)] if worker.stages else []
    body = Group(rows, *(Text(line) for line in lines), *stages)
    return Panel(body, title=Text(title), title_align="left", style=style)


def _kv(worker: WorkerLoad) -> str:
    text = f"{worker.num_used_gpu_blocks:,} of {worker.num_gpu_blocks:,} blocks"
    return text + f", {worker.num_cached_gpu_blocks:,} more cached"


def _bar(used: int, total: int) -> Text:
    share = used / total if total else 0.0
    filled = round(share * BAR_WIDTH)
    color = "green" if share < 0.75 else "yellow" if share < 0.95 else "red"
    return Text.assemble(
        ("█" * filled, color), ("░" * (BAR_WIDTH - filled), "dim"), f" {share:4.0%}"
    )


def _shares(worker: WorkerLoad) -> list[str]:
    shares = [f"{name} {share:.0%}" for name, share in worker.step_shares.items()]
    return [f"time of a step: {', '.join(shares)}"] if shares else []


def _requests(requests: list[RequestLoad]) -> Table:
    table = make_table(
        Column("request", overflow="ellipsis"),
        Column("phase", min_width=7, no_wrap=True),
        *map(right, ("prompt", "output", "at most", "waited", "age")),
    )
    for request in requests:
        table.add_row(
            Text(request.request_id),  # a client chose it, so it is no markup
            request.phase,
            f"{request.num_prompt_tokens:,}",
            f"{request.num_output_tokens:,}",
            f"{request.max_tokens:,}",
            time_text(request.waited_s),
            time_text(request.age_s),
        )
    return table


def _known(text: str, values: Quantiles) -> str:
    """Returns a text with the quantiles in it; empty while there are none."""
    return text.format(shown) if (shown := quantiles_text(values)) else ""
