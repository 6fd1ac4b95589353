"""How `auto` compares the candidates that work, with times of a fake clock."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from signalbox_worker.batch.batch import Batch
from signalbox_worker.device.trials.trial import Verdict
from signalbox_worker.models.attention import AttentionShape, choose_attention_backend, selection
from signalbox_worker.models.attention.backend_times import Load, load_for, try_under_load
from signalbox_worker.models.attention.selection import fastest
from signalbox_worker.models.attention.torch_backend import TorchAttention
from tests.gpu_worker.device.trials.trials_here import run_here
from tests.gpu_worker.models.attention.device_attention import make_shape
from tests.gpu_worker.models.attention.faulty_backends import BrokenAttention

PATH = "tests.gpu_worker.models.attention.test_selection:"
KINDS = ("decode of 1", "decode of 64", "prefill of 2047")


def times(*seconds: float) -> dict[str, float]:
    return dict(zip(KINDS, seconds, strict=True))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"a": times(1, 1, 1), "b": times(2, 1, 1)}, "a"),
        ({"a": times(2, 1, 1), "b": times(1, 1, 1)}, "b"),
        ({"a": times(1, 10, 100), "b": times(1, 5, 120)}, "b"),  # ratios count, not seconds
        ({"a": times(1.03, 1.03, 1.03), "b": times(1, 1, 1)}, "a"),  # within the noise
        ({"a": times(9, 9, 9), "b": {}}, "a"),  # no clock: the order
        ({"a": {}, "b": {}}, "a"),
        ({"a": times(9, 9, 9), "b": times(1, 1, 1) | {"other": 1.0}}, "a"),
    ],
)
def test_the_fastest_is_the_first_with_the_least_mean_ratio(
    seconds: Mapping[str, Mapping[str, float]], expected: str
) -> None:
    assert fastest(seconds) == expected


class OneAttention(TorchAttention):
    pass


class OtherAttention(TorchAttention):
    pass


class WorkClock:
    """Does the work, and says that it took a second longer than the work before."""

    def __init__(self) -> None:
        self.num_runs = 0

    def __call__(self, work: Callable[[], None]) -> float:
        work()
        self.num_runs += 1
        return float(self.num_runs)


def test_the_log_says_what_was_timed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = WorkClock()  # the second candidate is later, and so slower
    monkeypatch.setattr(selection, "verdicts_of", run_here)
    monkeypatch.setattr(selection, "clock_of", lambda device: clock)
    monkeypatch.setattr(selection, "load_for", lambda shape: Load(3, 21))
    names = (f"{PATH}OneAttention", f"{PATH}OtherAttention", "torch")
    monkeypatch.setattr(selection, "candidates", lambda device: names)
    with caplog.at_level("INFO"):
        assert choose_attention_backend("auto", make_shape()).name == names[0]
    assert clock.num_runs == 6
    assert (
        "OneAttention: decode of 1 333333.3 us, decode of 3 2000000.0 us, prefill of 20"
        in caplog.text
    )
    assert "OtherAttention: decode of 1" in caplog.text


def test_the_fastest_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (f"{PATH}OneAttention", f"{PATH}OtherAttention", "torch")
    monkeypatch.setattr(selection, "candidates", lambda device: names)
    verdicts = [Verdict(seconds=times(3, 3, 3)), Verdict(seconds=times(2, 2, 2))]
    monkeypatch.setattr(selection, "verdicts_of", lambda trials, device: verdicts)
    assert type(choose_attention_backend("auto", make_shape()).backend) is OtherAttention
    verdicts[1] = Verdict(fault="its results are off by 3", seconds=times(1, 1, 1))
    assert type(choose_attention_backend("auto", make_shape()).backend) is OneAttention
    verdicts[0] = Verdict(refusal="too large")
    with pytest.raises(ValueError, match=r"too large; .*OtherAttention' does not work here, for"):
        choose_attention_backend("auto", make_shape())
    verdicts[1] = Verdict(refusal="too small")
    chosen = choose_attention_backend("auto", make_shape())
    assert (chosen.name, chosen.is_last_resort) == ("torch", False)  # on a CPU nothing is faster
    on_gpu = choose_attention_backend("auto", make_shape(device="cuda"))
    assert (on_gpu.name, on_gpu.is_last_resort) == ("torch", True)
    assert not choose_attention_backend("torch", make_shape(device="cuda")).is_last_resort


class LosingAttention(TorchAttention):
    """Wrong beyond the lengths of the small trial."""

    def plan(self, batch: Batch) -> Any:
        plan = super().plan(batch)
        if batch.context_lens.max() < 80:
            return plan
        return lambda query, key_value, *, layer: plan(query, key_value, layer=layer) * 0.5


def test_work_of_a_servers_size_is_compared_too() -> None:
    shape = make_shape(num_layers=2, sliding_windows=(None, 9), num_kv_heads=2)
    for factory, worst in ((TorchAttention, 0.05), (LosingAttention, float("inf"))):
        difference, _ = try_under_load(factory(shape), shape, Load(3, 100), lambda work: 1.0)
        assert (difference <= 0.05) == (worst == 0.05)
    difference, _ = try_under_load(BrokenAttention(shape), shape, Load(3, 100), lambda work: 1.0)
    assert difference != difference  # NaN


def test_the_load_fits_the_device() -> None:
    def bytes_of(shape: AttentionShape) -> int:
        load = load_for(shape)
        return load.num_seqs * load.context * shape.block_bytes // shape.block_size

    of_8b = make_shape(num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    assert load_for(of_8b) == Load(64, 2048)
    many_heads = make_shape(num_kv_heads=64, head_size=128)
    assert load_for(many_heads).context < 2048
    assert bytes_of(of_8b) <= bytes_of(many_heads) <= 1 << 30


def test_a_shape_reaches_the_process_of_trials_as_it_is() -> None:
    shape = make_shape(
        num_layers=2,
        sliding_windows=(None, 9),
        soft_cap=20.0,
        dtype=torch.bfloat16,
        fp8_scales=((0.5, 2.0), (1.0, 1.0)),
    )
    sent = json.loads(json.dumps(selection._encode(shape)))
    assert selection._decode(sent, shape.device) == shape
