"""What `signalbox top` makes of two answers of a scheduler."""

import dataclasses
import io
import json
import re
from collections.abc import Iterable

import pytest
from rich.console import Console

from signalbox.commands.inspect.load_rates import LoadRates, measure
from signalbox.commands.inspect.top import Watch, run
from signalbox.commands.inspect.top_view import render
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import explain_pb2, sample_pb2
from signalbox_protos.scheduler.v1 import stats_pb2 as pb

MS = 1_000_000


LONG_ID = "0123456789abcdef" * 8


def make_request(
    request_id: str, state: explain_pb2.RequestState, *, waited_ns: int = 0
) -> pb.RequestSummary:
    return pb.RequestSummary(
        request_id=request_id,
        state=state,
        num_prompt_tokens=700,
        max_tokens=64,
        age_ns=1500 * MS,
        waited_ns=waited_ns,
    )


def counter(name: str, value: float, **labels: str) -> sample_pb2.Sample:
    return sample_pb2.Sample(name=name, labels=labels, counter=value)


def durations(name: str, *counts: int) -> sample_pb2.Sample:
    histogram = sample_pb2.Histogram(bounds=[10 * MS, 20 * MS], counts=counts, unit=1e-9)
    return sample_pb2.Sample(name=name, histogram=histogram)


def make_stats(
    seconds: int, *, num_steps: int = 0, tokens: int = 0, more: Iterable[sample_pb2.Sample] = ()
) -> pb.GetStatsResponse:
    worker = pb.WorkerStats(
        address="host:1",
        num_requests_running=7,
        num_gpu_blocks=100,
        num_free_gpu_blocks=60,
        num_cached_gpu_blocks=10,
        num_cpu_blocks=50,
        num_free_cpu_blocks=50,
        samples=[
            durations("step_duration_seconds", num_steps, 0, 0),
            counter("generation_tokens", tokens),
            counter("prefill_tokens", 3 * tokens),
            counter("step_phase_seconds", 3 * num_steps, phase="forward"),
            counter("step_phase_seconds", num_steps, phase="wait"),
            counter("num_preemptions", 5),
            counter("num_recomputes", 2),
            counter("prefix_cache_queries", tokens),
            counter("prefix_cache_hits", tokens // 4),
            *more,
        ],
    )
    queued = make_request("queued", explain_pb2.REQUEST_STATE_WAITING, waited_ns=2500 * MS)
    queued.age_ns = queued.waited_ns
    running = explain_pb2.REQUEST_STATE_RUNNING
    return pb.GetStatsResponse(
        model_name="SmolLM2",
        live_requests=[queued, *(make_request(name, running) for name in (LONG_ID, "[bold]fresh"))],
        uptime_ns=seconds * 10**9,
        num_requests_waiting=4,
        workers=[worker],
        requests=pb.RequestStats(num_ended={"STOP": seconds}),
    )


def test_rates_are_differences_over_the_scheduler_s_own_time() -> None:
    load = measure(
        make_stats(10, num_steps=50, tokens=1000), make_stats(14, num_steps=90, tokens=3000)
    )
    [worker] = load.workers
    assert load.requests_per_s == 1.0
    assert worker.steps_per_s == 10.0
    assert worker.generated_tokens_per_s == load.generated_tokens_per_s == 500.0
    assert worker.prefill_tokens_per_s == 1500.0
    assert worker.prefix_hit_rate == 0.25
    assert worker.step_shares == {"forward": 0.75, "swap": 0.0, "sample": 0.0, "wait": 0.25}
    assert (worker.num_swaps, worker.num_recomputes) == (3, 2)
    assert worker.num_used_gpu_blocks == 40


def test_quantiles_are_of_what_came_between_and_lie_within_their_bucket() -> None:
    before, after = make_stats(1), make_stats(2)
    before.workers[0].samples[0].histogram.counts[:] = [1000, 0, 0]
    after.workers[0].samples[0].histogram.counts[:] = [1000, 100, 0]
    step = measure(before, after).workers[0].step
    assert step.p50_s == pytest.approx(0.015)
    assert step.p99_s == pytest.approx(0.0199)
    assert measure(before, before).workers[0].step.p50_s is None


def test_a_worker_that_came_back_at_its_address_has_no_negative_rates() -> None:
    load = measure(make_stats(1, num_steps=500, tokens=9000), make_stats(2, num_steps=3, tokens=8))
    assert load.workers[0].steps_per_s == 3.0
    assert load.workers[0].generated_tokens_per_s == 8.0


def text_of(renderable: object, columns: int = 80) -> str:
    console = Console(width=columns, file=io.StringIO())
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_the_screen_shows_queues_pools_and_rates() -> None:
    load = measure(
        make_stats(10, num_steps=50, tokens=1000), make_stats(14, num_steps=90, tokens=3000)
    )
    text = text_of(render(load, "host:50052"))
    for part in (
        *("waiting 4", "running 7", "stop 14", "SmolLM2"),
        *("40 of 100 blocks, 10 more cached", " 40%", "0 of 50 blocks"),
        *("500 tokens/s generated", "1,500 tokens/s prefilled, 25% found", "forward 75%"),
        "3 by swap, 2 by recompute",
    ):
        assert part in text
    bodies = [line for line in text.splitlines() if line.startswith("│")]
    assert all(line.endswith(" │") for line in bodies)  # nothing is cut off or goes on below
    (long, fresh) = [line.split() for line in text.splitlines() if "prefill" in line][-2:]
    assert long[0].endswith("…")
    assert fresh == ["[bold]fresh", "prefill", "700", "0", "64", "0", "ms", "1.5", "s"]


def make_moves(factor: int) -> list[sample_pb2.Sample]:
    """Returns the samples of a disk, other workers, and a part without a line on the screen."""
    disk, peer = {"tier": "disk"}, {"tier": "peer"}
    return [
        counter("kv_store_queries", 100 * factor, **disk),
        counter("kv_store_hits", 0, **disk),
        counter("kv_store_bytes", 10**6 * factor, direction="out", **disk),
        counter("kv_store_queries", 100 * factor, **peer),
        counter("kv_store_hits", 75 * factor, **peer),
        counter("kv_store_bytes", 4 * 10**6 * factor, direction="in", **peer),
        counter("kv_store_failures", factor, direction="in", **peer),
        sample_pb2.Sample(name="num_requests_loading", labels=peer, gauge=2),
        counter("moved_pictures", 7 * factor),
    ]


def squeezed(load: LoadRates) -> str:
    return " ".join(text_of(render(load, "host:1")).replace("│", " ").split())


def test_the_screen_shows_what_comes_from_stores_and_other_workers() -> None:
    after = make_stats(3, more=make_moves(3))
    load = measure(make_stats(1, more=make_moves(1)), after)
    text = squeezed(load)
    assert "disk: hit rate so far 0% 1.0 MB/s out peer: hit rate" in text
    assert "peer: hit rate so far 75% 4.0 MB/s in 3 failed 2 loading" in text
    assert "hit rate so far 75% 0.0 MB/s in" in squeezed(measure(after, after))


def test_a_count_that_the_screen_does_not_choose_is_in_the_json_object() -> None:
    load = measure(make_stats(1, more=make_moves(1)), make_stats(3, more=make_moves(3)))
    samples = json.loads(json.dumps(dataclasses.asdict(load)))["workers"][0]["samples"]
    (found,) = (one for one in samples if one["name"] == "moved_pictures")
    assert (found["value"], found["per_s"]) == (21, 7)


def test_the_screen_shows_what_was_migrated() -> None:
    more = [
        counter("migrations", 5, result="out"),
        counter("migrations", 1200, result="in"),
        counter("migrations", 3, result="aborted"),
        durations("migration_pause_seconds", 0, 100, 0),
    ]
    before = make_stats(1)
    text = squeezed(measure(before, make_stats(3, more=more)))
    assert "migrated so far: 5 out 1,200 in 3 aborted paused 15 ms (p99 20 ms)" in text
    assert "migrated" not in squeezed(measure(before, make_stats(3)))


def test_the_screen_shows_what_became_of_drafts() -> None:
    more = [
        counter("spec_decode_num_draft_tokens", 2000),
        counter("spec_decode_num_accepted_tokens", 1500),
    ]
    text = squeezed(measure(make_stats(1), make_stats(3, more=more)))
    assert "drafts so far: 2,000 kept 75%" in text


def test_the_screen_shows_what_audits_have_found() -> None:
    stats = make_stats(1)
    none = [counter("audits_equal", 0), counter("audits_different", 0, source="swap")]
    stats.samples.extend(none)
    assert "audits" not in squeezed(measure(stats, stats))
    stats.samples.extend(
        [
            counter("audits_equal", 1200),
            counter("audits_different", 2, source="store"),
            counter("audit_sources_avoided", 1, source="store"),
        ]
    )
    text = squeezed(measure(stats, stats))
    assert "audits so far: 1,200 equal 2 different store: suspected in 2 audits" in text
    assert "audits taken out of use 1x" in text and "swap: suspected" not in text


def test_the_screen_says_which_groups_of_layers_a_worker_has() -> None:
    after = make_stats(1)
    full = common_pb2.CacheGroup(kind="full", layers=range(4))
    after.workers[0].groups.append(full)
    assert "KV of" not in text_of(render(measure(make_stats(0), after), "host:50052"))
    after.workers[0].groups.extend([common_pb2.CacheGroup(kind="window", window=512)] * 5)
    shown = text_of(render(measure(make_stats(0), after), "host:50052"))
    assert "KV of full (4 layers), 5 x window of 512" in shown


def test_what_is_not_known_yet_has_no_place_on_the_screen() -> None:
    more = [
        counter("kv_store_queries", 0, tier="peer"),
        durations("migration_pause_seconds", 1, 0, 0),
    ]
    stats = make_stats(1, more=more)
    text = text_of(render(measure(stats, stats), "host:1"))
    assert re.search(r"\s-\W", text) is None
    assert "0.0 steps/s" in text
    assert "peer" not in text and "migrated" not in text
    assert "first token" not in text


def test_requests_are_in_the_phase_that_they_are_in() -> None:
    before, after = make_stats(1), make_stats(2)
    after.live_requests.append(make_request("fetching", explain_pb2.REQUEST_STATE_LOADING))
    load = measure(before, after)
    phases = {request.request_id: request.phase for request in load.requests}
    assert phases == {
        "queued": "waiting",
        LONG_ID: "prefill",
        "[bold]fresh": "prefill",
        "fetching": "loading",
    }
    (queued, *_) = load.requests
    assert (queued.waited_s, queued.age_s) == (2.5, 2.5)


def test_sessions_are_shown_with_what_they_found_and_what_broke() -> None:
    stats = make_stats(10)
    found = pb.TurnTokens(num_prompt_tokens=1000, num_device_tokens=600, num_store_tokens=150)
    broken = explain_pb2.PrefixComparison(
        cause=explain_pb2.PREFIX_CAUSE_MESSAGE_CHANGED, path="messages[3]", num_lost_tokens=2048
    )
    stats.sessions.add(
        session=bytes.fromhex("c0ffee0123456789"), num_turns=7, total=found, last_turn=found,
        called_tool=True, idle_ns=12 * 10**9, last_prefix=broken,
    )  # fmt: skip
    intact = explain_pb2.PrefixComparison(cause=explain_pb2.PREFIX_CAUSE_UNCHANGED)
    stats.sessions.add(session=bytes(16), num_live_requests=1, last_prefix=intact)
    load = measure(stats, stats)
    text = squeezed(load)
    for part in ("c0ffee01 7 75% 75%", "device 600", "store 150", "12 s, tool", "2,048 tokens"):
        assert part in text
    assert "message changed" in text and "messages[3]" in text
    assert "c0ffee012" not in text
    assert "00000000 0 live" in text
    assert load.sessions[1].broken_by == ""
    assert all(len(line) <= 80 for line in text_of(render(load, "host:1")).splitlines())


def test_a_scheduler_that_goes_away_is_reported_until_it_is_back() -> None:
    watch = Watch("host:50052")
    watch.observe(make_stats(10, num_steps=50))
    watch.observe(make_stats(11, num_steps=60))
    watch.lost("no scheduler answers at host:50052")
    assert "no scheduler answers at host:50052; trying again" in text_of(watch.view())
    assert "running 7" in text_of(watch.view())  # what was known last
    watch.observe(make_stats(1, num_steps=3))  # another one, whose counts begin again
    assert "trying again" not in text_of(watch.view())
    assert " 0.0 steps/s" in text_of(watch.view())


def test_options_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="--interval is 0"):
        run({"address": "", "interval": 0, "once": True, "json": False})


@pytest.mark.parametrize(("columns", "shown"), [(80, LONG_ID[:20]), (200, LONG_ID)])
def test_an_id_is_whole_where_it_fits_and_cut_before_any_number(columns: int, shown: str) -> None:
    stats = make_stats(1)
    text = text_of(render(measure(stats, stats), "host:50052"), columns)
    (line,) = [line for line in text.splitlines() if LONG_ID[:20] in line]
    assert shown in line and "prefill" in line
    assert "…" not in line.partition("prefill")[2]


def test_the_address_of_a_worker_is_no_markup() -> None:
    stats = make_stats(1)
    stats.workers[0].address = "[fe80::1]:50061"
    assert "[fe80::1]:50061  running 7" in text_of(render(measure(stats, stats), "host:50052"))


def test_the_screen_says_how_many_workers_are_kept_and_what_they_wait_for() -> None:
    stats = make_stats(1)
    assert "serve keeps" not in text_of(render(measure(stats, stats), "a:1"))
    stats.launcher.CopyFrom(
        pb.LauncherState(
            placement="ray",
            num_workers=2,
            pending=[
                pb.PendingWorker(name="worker 0", reason="worker 0 exited"),
                pb.PendingWorker(name="worker 1", reason="waits for Ray"),
            ],
        )
    )
    shown = text_of(render(measure(stats, stats), "a:1"))
    kept = "signalbox serve keeps 2 workers running on Ray"
    assert f"{kept}\nworker 0 exited\nworker 1: waits for Ray" in shown
