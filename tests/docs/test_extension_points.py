"""Packages outside the tree import only from the modules that the changelog promises to keep."""

import ast
import importlib
import re
from collections.abc import Iterator

import pytest

from tests.docs.blocks import ROOT, blocks

OURS = (
    "signalbox",
    "signalbox_contract",
    "signalbox_kernels",
    "signalbox_router",
    "signalbox_rpc",
    "signalbox_scheduler",
    "signalbox_worker",
)
EXAMPLES = {
    "a model": (
        "docs/how_to/add_a_model.md",
        "tests/gpu_worker/models/example_package/signalbox_olmo/__init__.py",
    ),
    "an attention backend": ("docs/how_to/add_an_attention_backend.md",),
    "a source of drafts": ("docs/how_to/add_a_draft_source.md",),
    "a scheduling policy": ("docs/how_to/choose_a_policy.md",),
    "a tool format": ("docs/how_to/add_a_tool_format.md",),
}


def kept_modules() -> dict[str, set[str]]:
    """Returns the modules of each row of the changelog's table."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (an? .+?) \| (.+) \|$", text, re.MULTILINE)
    return {what: set(re.findall(r"`([\w.]+)`", modules)) for what, modules in rows}


def programs(path: str) -> Iterator[str]:
    page = ROOT / path
    if page.suffix == ".py":
        yield page.read_text(encoding="utf-8")
        return
    yield from (block.text for block in blocks(page) if block.language == "python")


def imported(path: str) -> Iterator[str]:
    """Yields each name of ours that the programs of a file import, with its module."""
    for node in (node for text in programs(path) for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("what", EXAMPLES)
def test_examples_import_only_from_modules_that_stay(what: str) -> None:
    kept = kept_modules()[what]
    for name in (name for path in EXAMPLES[what] for name in imported(path)):
        assert name in kept or name.rpartition(".")[0] in kept, name


def test_modules_that_stay_have_the_names_that_they_export() -> None:
    modules = {name for names in kept_modules().values() for name in names}
    assert len(modules) >= 8
    for name in modules:
        module = importlib.import_module(name)
        assert all(hasattr(module, one) for one in getattr(module, "__all__", ()))
