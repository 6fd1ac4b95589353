"""Loads of adapters that requests name."""

import asyncio
from typing import Any, cast

from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.first_use import FirstUse
from tests.router.fakes import make_model
from tests.waiting import eventually


class HeldLoads:
    """Stands in for the client of schedulers: loads end when they may."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, str]] = []
        self.may_end = asyncio.Event()

    async def load_at_first_use(self, name: str, model: ServedModel) -> None:
        self.begun.append((model.name, name))
        await self.may_end.wait()


async def test_models_load_adapters_of_one_name_apart() -> None:
    held = HeldLoads()
    first_use = FirstUse(cast(Any, held))
    one, two = make_model(name="one"), make_model(name="two")
    async with asyncio.TaskGroup() as group:
        for model in (one, two, one, two):
            group.create_task(first_use.load("sql", model))
        await eventually(lambda: len(held.begun) == 2)
        held.may_end.set()
    assert held.begun == [("one", "sql"), ("two", "sql")]
    await first_use.close()
    assert not first_use._loads
