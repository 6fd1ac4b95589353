"""Divides the time of a worker's steps among its pipeline stages, in shares and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from signalbox.client.tables import duration, make_table, right
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import explain_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRank:
    """One rank of a stage."""

    rank: int
    tensor_parallel_rank: int
    host: str
    address: str
    """HOST:PORT where other ranks reach it; empty if rank 0 has started it on its own host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """One stage. Shares are of the time with a step in flight; None if there was none."""

    stage: int
    first_layer: int
    num_layers: int
    ranks: list[StageRank]
    busy: float | None
    """Share of the forward passes; the rest are bubbles."""
    waiting: float | None
    """Share in which a step was there and its hidden states were not."""
    collectives: float | None
    """Share in collectives, which is part of `busy`."""
    boundary_bytes: float | None
    """Mean of a step; None without figures, as on the last stage."""
    boundary_s: float | None


def stage_loads(before: pb.StageUse, after: pb.StageUse) -> list[StageLoad]:
    """Returns each stage's share of the work between two accounts, the older first."""
    in_flight_ns = after.in_flight_ns - before.in_flight_ns
    num_steps = after.num_steps - before.num_steps
    by_stage: dict[int, list[common_pb2.WorkerRank]] = {}
    for rank in after.ranks:
        by_stage.setdefault(rank.stage, []).append(rank)
    return [
        _load(stage, ranks, _times(before, after, stage), in_flight_ns, num_steps)
        for stage, ranks in sorted(by_stage.items())
    ]


def _times(before: pb.StageUse, after: pb.StageUse, stage: int) -> common_pb2.StageTimings | None:
    if stage >= len(after.stages):
        return None
    now = after.stages[stage]
    then = before.stages[stage] if stage < len(before.stages) else common_pb2.StageTimings()
    names = (field.name for field in now.DESCRIPTOR.fields)
    return common_pb2.StageTimings(
        **{name: max(0, getattr(now, name) - getattr(then, name)) for name in names}
    )


def _load(
    stage: int,
    ranks: Sequence[common_pb2.WorkerRank],
    times: common_pb2.StageTimings | None,
    in_flight_ns: int,
    num_steps: int,
) -> StageLoad:
    times = times or common_pb2.StageTimings()

    def share(part_ns: int) -> float | None:
        return min(1.0, part_ns / in_flight_ns) if in_flight_ns else None

    passes_on = bool(times.boundary_bytes and num_steps)
    return StageLoad(
        stage=stage,
        first_layer=ranks[0].first_layer,
        num_layers=ranks[0].num_layers,
        ranks=[
            StageRank(
                rank=one.rank,
                tensor_parallel_rank=one.tensor_parallel_rank,
                host=one.host,
                address=one.address,
            )
            for one in ranks
        ],
        busy=share(times.forward_ns),
        waiting=share(times.wait_ns),
        collectives=share(times.collective_ns),
        boundary_bytes=times.boundary_bytes / num_steps if passes_on else None,
        boundary_s=times.boundary_ns / 1e9 / num_steps if passes_on else None,
    )


def stage_table(stages: Sequence[StageLoad]) -> Table:
    """Returns a row for each stage."""
    numbers = map(right, ("busy", "waits", "sums", "passes on"))
    table = make_table(right("stage"), "layers", "ranks", *numbers)
    for one in stages:
        table.add_row(
            str(one.stage),
            f"{one.first_layer}-{one.first_layer + one.num_layers - 1}" if one.num_layers else "-",
            _ranks(one.ranks),
            *map(_percent, (one.busy, one.waiting, one.collectives)),
            _boundary(one),
        )
    return table


def _ranks(ranks: Sequence[StageRank]) -> str:
    """Returns the ranks in the order of the tensor-parallel group, by host."""
    by_host: dict[str, list[str]] = {}
    for one in ranks:
        by_host.setdefault(_host(one), []).append(str(one.rank))
    return "; ".join(f"{', '.join(found)} {host}".strip() for host, found in by_host.items())


def _host(rank: StageRank) -> str:
    address = rank.address.rpartition(":")[0]
    return f"{rank.host} ({address})" if address and address != rank.host else rank.host


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _boundary(stage: StageLoad) -> str:
    if stage.boundary_bytes is None or stage.boundary_s is None:
        return "-"
    kib = stage.boundary_bytes / 1024
    size = f"{kib:.1f} KiB" if kib < 1024 else f"{kib / 1024:.1f} MiB"
    return f"{size} in {duration(stage.boundary_s)}"
