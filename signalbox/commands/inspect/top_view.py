"""Draws `signalbox top` in 80 columns: the scheduler, a panel for each worker, live requests."""

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
from signalbox.commands.inspect.part_lines import part_lines, quantiles_text, time_text
from signalbox.commands.inspect.readings import Quantiles
from signalbox.commands.inspect.stage_use import stage_table

BAR_WIDTH = 20


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
    requests = [_requests(load.requests)] if load.requests else []
    launcher = [_launcher(load.launcher)] if load.launcher else []
    return Group(head, _cluster(load), *launcher, *missing, *panels, *kept_out, *requests)


def _launcher(launcher: LauncherLoad) -> Text:
    shown = Text(f"workers that serve keeps ({launcher.placement}): {launcher.num_workers}")
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
        f"{worker.generated_tokens_per_s:,.0f} tokens/s generated"
        f"  {worker.prefill_tokens_per_s:,.0f} tokens/s prefilled{hits}",
        f"{worker.steps_per_s:,.1f} steps/s" + _known(" of {}", worker.step),
        *_shares(worker),
        *part_lines(worker.samples),
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
