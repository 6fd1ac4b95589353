"""Every audit of a request that met a fault reports it, and no other audit does."""

from pathlib import Path

import pytest

from tests.integration.audits.faulty_pair import differing, faulty_pair, predictions
from tests.integration.audits.shapes import SHAPES, Shape
from tests.integration.stack import assert_idle
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

pytestmark = pytest.mark.usefixtures("drafts_pay", "loading_pays", "patient_moves")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
async def test_audits_report_the_requests_that_met_a_fault(
    shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faulty_pair(shape, shape.save(tmp_path), monkeypatch) as pair:
        whole = await pair.ask()
        expected = predictions(whole) if shape.num_drafts else None
        for name, plant in shape.plants.items():
            await pair.begin_anew()
            assert not await pair.findings()
            with monkeypatch.context() as patch:
                pair.plant(plant, patch)
                answers = await pair.ask(expected, drains=shape.migrates)
                found = await pair.findings()
            met = differing(answers, whole)
            assert met, f"{name}: it changes nothing"
            assert sorted(one.request_id for one in found) == sorted(met), name
            assert {one.source for one in found} == {shape.source}, name
        await assert_idle(pair.scheduler)
