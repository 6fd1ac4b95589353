"""Folders of a package depend on each other in one direction.

Each folder and each top-level module of a package is a node. Imports between nodes form no circle;
imports in functions and under TYPE_CHECKING count. So a node can be read with nothing but the nodes
below it. What stands at the top of a package, its wings and modules, is in order in `WINGS` as
well.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.test_imports import ALLOWED, FOLDERS, ROOT

PUBLIC = {
    "signalbox_worker.models.attention",
    "signalbox_worker.models.layers",
    "signalbox_worker.models",
    "signalbox",
    "signalbox.llm",
    "signalbox.model_executor.models",
    "signalbox.utils",
    "signalbox_client",
    "signalbox_kernels.triton",
}
"""Folders from which others import names: extension points, the Python API and vLLM's own paths."""

VLLM_PATHS = (
    "beam_search",
    "config",
    "distributed",
    "engine",
    "entrypoints",
    "inputs",
    "logprobs",
    "lora",
    "model_executor",
    "outputs",
    "pooling_params",
    "sampling_params",
    "utils",
    "v1",
)
"""Import paths of vLLM in `signalbox`, which have nothing of their own."""
WINGS: dict[str, tuple[str, ...]] = {
    "signalbox_contract": (
        "errors",
        "wording",
        "columns",
        "structured_output",
        "tokenizer_files",
        "startup",
        "model_state",
        "worker_role",
        "description_bounds",
        "cache_groups",
        "logprobs",
        "pooling",
        "sections",
        "sampling_params",
        "sampling_codec",
        "sampling_defaults",
        "model",
        "updates",
        "step_result",
        "step",
        "prefix_comparison",
        "request",
    ),
    "signalbox_rpc": (
        "lifetime",
        "telemetry",
        "interceptors",
        "limits",
        "transport",
        "http",
        "metrics",
        "settings",
    ),
    "signalbox_router": (
        "limits",
        "prompt",
        "params",
        "requests",
        "receipts",
        "parsers",
        "config",
        "insight",
        "schedulers",
        "generation",
        "apis",
        "console",
        "http",
        "main",
    ),
    "signalbox_worker": (
        "adapter_option",
        "generation_fields",
        "config",
        "speculation_settings",
        "missing_packages",
        "device",
        "batch",
        "files",
        "models",
        "layers",
        "attention",
        "sampling",
        "drafts",
        "kv",
        "runner",
        "lease",
        "service",
        "main",
    ),
    "signalbox_scheduler": (
        "config",
        "requests",
        "kv",
        "queue",
        "planning",
        "transfers",
        "results",
        "audits",
        "insight",
        "workers",
        "service",
        "main",
    ),
    "signalbox": (
        "version",
        "settings",
        "client",
        "stack",
        "llm",
        "bench",
        "commands",
        "cli",
        "__main__",
        *VLLM_PATHS,
    ),
}
"""By package, the folders and modules at its top, lowest first: each imports only those before."""

Graph = dict[str, dict[str, set[str]]]
"""By node, the nodes that it imports, and the imports that do so as "importer: imported"."""


def sources_of(folder: Path) -> dict[str, str]:
    """Returns the sources of a package by module; those of `__init__.py` by the folder's name."""
    found = {}
    for path in folder.rglob("*.py"):
        name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def node_of(module: str) -> str:
    """Returns the folder that holds a module, or the module itself at the top of its package."""
    package, *rest = module.split(".")
    if len(rest) == 1:  # of the package's own __init__.py too
        return module
    return ".".join([package, *rest[:-1]])


def imported(source: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yields the modules among `modules` that a source imports."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            holder = name.rpartition(".")[0]
            for candidate in (name, f"{name}.__init__", holder, f"{holder}.__init__"):
                if candidate in modules:
                    yield candidate
                    break


def graph_of(sources: Mapping[str, str]) -> Graph:
    graph: Graph = {}
    for module, source in sources.items():
        below = graph.setdefault(node_of(module), {})
        for other in imported(source, sources):
            if node_of(other) != node_of(module):
                below.setdefault(node_of(other), set()).add(f"{module}: {other}")
    return graph


def find_circle(graph: Graph) -> list[str]:
    """Returns the imports that make one circle between nodes; none if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        nodes = error.args[1]  # each is imported by the next
        return [line for low, high in pairwise(nodes) for line in sorted(graph[high][low])]
    return []


def wing_of(module: str) -> str:
    """Returns the folder or module at the top of a package that a module is, or lies in."""
    return module.split(".")[1]


def imports_of_a_higher_wing(sources: Mapping[str, str], wings: Sequence[str]) -> list[str]:
    """Returns these imports as "importer: imported"; the package itself is the highest."""
    order = {wing: index for index, wing in enumerate((*wings, "__init__"))}
    return [
        f"{module}: {other}"
        for module, source in sources.items()
        for other in imported(source, sources)
        if order[wing_of(other)] > order[wing_of(module)]
    ]


@pytest.mark.parametrize("package", WINGS)
def test_a_wing_imports_only_lower_ones(package: str) -> None:
    sources = sources_of(FOLDERS[package])
    assert {wing_of(module) for module in sources} - {"__init__"} == set(WINGS[package])
    assert imports_of_a_higher_wing(sources, WINGS[package]) == []


@pytest.mark.parametrize("package", WINGS)
def test_the_architecture_lists_the_wings_lowest_first(package: str) -> None:
    holder = FOLDERS[package].relative_to(ROOT).parts[0]
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    row = text.partition(f"\n| `{holder}/` | ")[2].partition("\n")[0]
    wings = [one for one in WINGS[package] if (FOLDERS[package] / one).is_dir()]
    ours = [one for one in wings if package != "signalbox" or one not in VLLM_PATHS]
    assert [name for name in re.findall(r"`(\w+)`", row) if name in ours] == ours


@pytest.mark.parametrize("package", ALLOWED)
def test_no_circle_between_the_folders_of_a_package(package: str) -> None:
    sources = sources_of(FOLDERS[package])
    assert sources
    assert find_circle(graph_of(sources)) == []


@pytest.mark.parametrize(
    "source",
    [
        "from pkg.low.one import f",
        "from pkg.low import one",
        "import pkg.low.one",
        "from pkg.low import f",  # from its __init__.py
        "def f():\n    from pkg.low import one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.low.one import T",
    ],
)
def test_a_circle_is_found(source: str) -> None:
    sources = {"pkg.__init__": "", "pkg.low.__init__": "", "pkg.low.one": "import pkg.high.two"}
    assert find_circle(graph_of(sources | {"pkg.high.two": ""})) == []
    assert find_circle(graph_of(sources | {"pkg.high.two": source}))


def test_an_import_of_a_higher_wing_is_found() -> None:
    sources = {"pkg.__init__": "", "pkg.low.deep.one": "import pkg.top", "pkg.top": ""}
    assert imports_of_a_higher_wing(sources, ["top", "low"]) == []
    assert imports_of_a_higher_wing(sources, ["low", "top"]) == ["pkg.low.deep.one: pkg.top"]


def test_a_circle_over_three_nodes_is_named() -> None:
    sources = {
        "pkg.top": "import pkg.a.x",
        "pkg.a.x": "import pkg.b.y",
        "pkg.b.y": "import pkg.top",
    }
    expected = {"pkg.top: pkg.a.x", "pkg.a.x: pkg.b.y", "pkg.b.y: pkg.top"}
    assert set(find_circle(graph_of(sources))) == expected


def test_modules_of_one_folder_may_import_each_other() -> None:
    sources = {"pkg.a.x": "import pkg.a.y", "pkg.a.y": "def f():\n    import pkg.a.x"}
    assert find_circle(graph_of(sources)) == []


@pytest.mark.parametrize("package", ALLOWED)
def test_only_public_folders_have_code_of_their_own(package: str) -> None:
    """So that importing one module loads no other, and a name has one place to import it from."""
    found = {
        module.removesuffix(".__init__")
        for module, source in sources_of(FOLDERS[package]).items()
        if module.endswith(".__init__")
        and any(not isinstance(node, ast.Expr) for node in ast.parse(source).body)
    }
    assert found <= PUBLIC
