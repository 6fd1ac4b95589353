"""The stages of a worker as `top` and `explain` show them."""

import io

from rich.console import Console

from signalbox.commands.inspect.stage_use import stage_loads, stage_table
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import explain_pb2 as pb

MS = 1_000_000
RANKS = [
    common_pb2.WorkerRank(rank=0, stage=1, host="b", first_layer=4, num_layers=2),
    common_pb2.WorkerRank(
        rank=1, stage=0, tensor_parallel_rank=0, host="a", address="10.0.0.1:50101", num_layers=4
    ),
    common_pb2.WorkerRank(
        rank=2, stage=0, tensor_parallel_rank=1, host="a", address="10.0.0.1:50102", num_layers=4
    ),
]


def make_use(num_steps: int) -> pb.StageUse:
    """Each step is in flight for 10 ms; stage 0 computes for 8 of them, stage 1 for 5."""
    first = common_pb2.StageTimings(
        forward_ns=8 * MS,
        collective_ns=2 * MS,
        boundary_bytes=2048,
        boundary_ns=MS // 2,
    )
    last = common_pb2.StageTimings(forward_ns=5 * MS, wait_ns=4 * MS)
    for times in (first, last):
        for field, value in times.ListFields():
            setattr(times, field.name, num_steps * value)
    return pb.StageUse(
        ranks=RANKS,
        stages=[first, last] if num_steps else [],
        num_steps=num_steps,
        in_flight_ns=num_steps * 10 * MS,
    )


def shown(before: pb.StageUse, after: pb.StageUse) -> str:
    text = io.StringIO()
    Console(file=text, width=80).print(stage_table(stage_loads(before, after)))
    return text.getvalue()


def test_shares_are_of_the_time_with_steps_in_flight_between_two_accounts() -> None:
    first, last = stage_loads(make_use(3), make_use(7))
    assert (first.busy, first.waiting, first.collectives) == (0.8, 0.0, 0.2)
    assert (last.busy, last.waiting, last.collectives) == (0.5, 0.4, 0.0)
    assert (first.boundary_bytes, first.boundary_s) == (2048, 0.0005)
    assert (last.boundary_bytes, last.boundary_s) == (None, None)
    assert [one.rank for one in first.ranks] == [1, 2]


def test_a_worker_at_rest_has_places_and_no_shares() -> None:
    for use in (make_use(0), make_use(5)):
        first, last = stage_loads(use, use)
        assert (first.busy, last.waiting, first.boundary_bytes) == (None, None, None)
        assert (last.first_layer, last.num_layers) == (4, 2)


def test_the_table_has_a_line_for_each_stage_with_its_hosts() -> None:
    head, first, last = shown(make_use(0), make_use(4)).splitlines()
    assert head.split() == ["stage", "layers", "ranks", "busy", "waits", "sums", "passes", "on"]
    assert first.split() == [
        *("0", "0-3", "1,", "2", "a", "(10.0.0.1)", "80%", "0%", "20%"),
        *("2.0", "KiB", "in", "500", "µs"),
    ]
    assert last.split() == ["1", "4-5", "0", "b", "50%", "40%", "0%", "-"]
