"""The model of a step on more cores, and the barrier that it is made of."""

import pytest

from benchmarks import more_cores
from benchmarks.comparison.bound import Needs
from benchmarks.more_cores import Machine
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


def test_a_step_reads_all_weights_multiplies_and_passes_each_barrier() -> None:
    needs = Needs(
        weight_bytes=10**8,
        weights=10**8,
        output_weights=10**7,
        kv_bytes_per_token=1000,
        num_layers=30,
        in_bytes=True,
    )
    machine = Machine(read_bytes=1e10, operations=1e12, barrier_s=2e-6)
    read_s, multiply_s, barriers_s = machine.step_s(needs, num_seqs=32)
    assert read_s == pytest.approx((1e8 + 32 * 192 * 1000) / 1e10)
    assert multiply_s == pytest.approx(2 * 32 * 1e8 / 1e12)
    assert barriers_s == pytest.approx((9 * 30 + 3) * 2e-6)


def test_a_phase_takes_time_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(more_cores, "ROUNDS", 3)
    assert all(more_cores.phase_s(num_threads) > 0 for num_threads in (1, 2, 3))
