"""The console in Debian's Chromium, as a person uses it.

`make test-console` runs these tests, in an environment that has playwright.
"""

from collections.abc import Generator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("playwright"):
    from tests.console.fixtures import *  # noqa: F403
else:
    collect_ignore_glob = ["test_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, help="folder for pictures of the console's views")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Has the person of a test tell what is on the screen when it fails."""
    person = pyfuncitem.funcargs.get("person")
    with person.telling() if person else nullcontext():
        return (yield)
