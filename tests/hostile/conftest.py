"""Stacks of the cases' options, each started once and one at a time."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.hostile.case import Options
from tests.hostile.stack import HostileStack, hostile_stack


@pytest.fixture(scope="package")
def stack_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Options], HostileStack]]:
    """Returns the stack of some options; the one before it is gone if its options were others."""
    with contextlib.ExitStack() as running:
        current: dict[Options, HostileStack] = {}

        def get(options: Options) -> HostileStack:
            if options not in current:
                running.close()
                current.clear()
                folder = tmp_path_factory.mktemp("hostile")
                current[options] = running.enter_context(hostile_stack(folder, options))
            return current[options]

        yield get
