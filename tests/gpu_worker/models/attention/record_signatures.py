"""Records the signatures of functions of flash-attn and FlashInfer that we call, from the sources.

`python -m tests.gpu_worker.models.attention.record_signatures CHECKOUT...`, with checkouts of
https://github.com/Dao-AILab/flash-attention or https://github.com/flashinfer-ai/flashinfer, writes
what they have to `signatures.json`. Nothing of a checkout is imported or built: versions are what
its files say.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

RECORD = Path(__file__).with_name("signatures.json")


class Parameter(TypedDict):
    """A parameter that can be given by name; its default as Python writes it, if it has one."""

    name: str
    default: NotRequired[str]


class Signature(TypedDict):
    """A function of one version, and the commit that last changed the file it is in."""

    version: str
    commit: str
    path: str
    function: str
    parameters: list[Parameter]


class _Source(NamedTuple):
    path: str
    function: str
    version_path: str
    version_pattern: str


_VERSION = r'__version__ = "(.+)"'
_SOURCES = {
    "flash_attn_2": _Source(
        "flash_attn/flash_attn_interface.py",
        "flash_attn_varlen_func",
        "flash_attn/__init__.py",
        _VERSION,
    ),
    "flash_attn_3": _Source(
        "hopper/flash_attn_interface.py", "flash_attn_with_kvcache", "hopper/__init__.py", _VERSION
    ),
    "flash_attn_4": _Source(
        "flash_attn/cute/interface.py",
        "flash_attn_varlen_func",
        "flash_attn/cute/pyproject.toml",
        r'dynamic = \["(version)"\]',  # the newest tag is its version
    ),
    "flashinfer_context": _Source(
        "flashinfer/prefill.py", "trtllm_batch_context_with_kv_cache", "version.txt", "(.+)"
    ),
    "flashinfer_decode": _Source(
        "flashinfer/decode.py", "trtllm_batch_decode_with_kv_cache", "version.txt", "(.+)"
    ),
}


def recorded() -> dict[str, Signature]:
    """Returns the signatures by the names of our backends; of FlashInfer there are two."""
    found: dict[str, Signature] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def parameters_in(source: str, function: str) -> list[Parameter]:
    """Returns the parameters of a function at a module's top."""
    (definition,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    given = definition.args
    assert not given.posonlyargs and not given.vararg and not given.kwarg
    positional = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    pairs = zip([*given.args, *given.kwonlyargs], [*positional, *given.kw_defaults], strict=True)
    return [_parameter(arg.arg, default and ast.unparse(default)) for arg, default in pairs]


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """Returns the parameters of a function that is installed."""
    return [
        _parameter(each.name, None if each.default is each.empty else repr(each.default))
        for each in inspect.signature(function).parameters.values()
    ]


def _parameter(name: str, default: str | None) -> Parameter:
    return Parameter(name=name) if default is None else Parameter(name=name, default=default)


def _record(checkout: Path, source: _Source) -> Signature:
    found = re.search(source.version_pattern, (checkout / source.version_path).read_text())
    assert found is not None, f"{source.version_path} states no version"
    version = found[1]
    if version == "version":
        version = _git(checkout, "describe", "--tags", "--match", "fa4-*")
    return Signature(
        version=version,
        commit=_git(checkout, "log", "-1", "--format=%H", "--", source.path),
        path=source.path,
        function=source.function,
        parameters=parameters_in((checkout / source.path).read_text(), source.function),
    )


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    signatures = recorded()
    for checkout in map(Path, sys.argv[1:]):
        signatures |= {
            name: _record(checkout, source)
            for name, source in _SOURCES.items()
            if (checkout / source.path).exists()
        }
    RECORD.write_text(json.dumps(signatures, indent=1) + "\n", encoding="utf-8")
