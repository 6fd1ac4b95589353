"""Changes modules in small ways, and shows the changes that no test of theirs notices.

    python -m scripts.mutate router/signalbox_router/config.py ... [--mutants 10] [--seed 0]

The tests are those of the folder of tests/ that mirrors the module's, and those of --tests. All
runs in a copy of the tree. The changes depend on the seed, the module's path and its text. One that
survives is a test that is missing, code that is not needed, or a change of nothing: look at each.
What runs out of time counts as noticed.
"""

import argparse
import ast
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MOST_MODULES = 60
RECORDINGS = "tests/scheduler_svc/service/replay/test_recordings.py"
BESIDE = {"scheduler_svc": [RECORDINGS]}
"""Tests of all modules of a package."""
NEEDED = ("models", "kernels/signalbox_kernels/_build")
"""Folders that git ignores and tests need."""
SWAPPED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
REMOVED = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)
UNTOUCHED = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
"""Invariants, texts, and what is noticed at once."""


class Mutant(NamedTuple):
    """A module with one change."""

    start: int
    """Offset in bytes of what is changed."""
    end: int
    text: str

    def source(self, original: bytes) -> bytes:
        return original[: self.start] + self.text.encode() + original[self.end :]


def mutants_of(source: bytes) -> list[Mutant]:
    """Returns all changes that can be made to a module, in order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, text in _changes(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        found.append(Mutant(start, starts[node.end_lineno - 1] + node.end_col_offset, text))
    return sorted(set(found))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yields nodes, and what may be in their place."""
    if isinstance(node, UNTOUCHED) or _is_log_line(node):
        return
    if isinstance(node, ast.expr):
        yield from ((node, f"({ast.unparse(other)})") for other in _other_expressions(node))
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    if isinstance(node, REMOVED) or is_call or _sets_state(node):
        assert isinstance(node, ast.stmt)
        yield node, "pass"
    if isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):
        yield node, "return None"  # instead of a constant, that is changed itself
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "bases"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changes(child)


def _other_expressions(node: ast.expr) -> Iterator[ast.expr]:
    other = deepcopy(node)
    match other:
        case ast.Compare(ops=[op, *_]) if type(op) in SWAPPED:
            other.ops[0] = SWAPPED[type(op)]()
            yield other
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPPED:
            other.op = SWAPPED[type(op)]()
            yield other
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)


def _is_log_line(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("logger.")


def _sets_state(node: ast.AST) -> bool:
    """True of an assignment whose lack ends in no NameError."""
    return isinstance(node, ast.Assign) and not any(isinstance(t, ast.Name) for t in node.targets)


def mirroring_tests(module: Path) -> list[str]:
    """Returns the test modules that mirror a module's folder, those of its package, or fewer."""
    folder = ROOT / "tests"
    for part in module.parent.parts:  # an import package in a folder of its name has no mirror
        folder = folder / part if (folder / part).is_dir() else folder
    found = sorted(str(path.relative_to(ROOT)) for path in folder.glob("test_*.py"))
    if folder == ROOT / "tests" or not found:
        raise SystemExit(f"no folder of tests/ mirrors that of {module}; name its tests by --tests")
    return found + BESIDE.get(module.parts[0], [])


def copy_tree(target: Path) -> None:
    """Copies what git knows or would take, and links what tests need beside it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.split("\0"):
        if (source := ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    for name in NEEDED:
        if (source := ROOT / name).is_dir():
            (target / name).symlink_to(source.resolve())


def failure_of(tree: Path, tests: list[str], *, limit_s: float) -> str:
    """Runs tests in a tree; returns what they print if one fails, or does not end in time."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not (alone or pages or system)"]
    # Compiled files would be taken for those of the change before, made within the same second.
    fresh = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tree,
        env=os.environ | fresh,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"they take more than {limit_s:.0f} s"
    return printed if process.returncode else ""


def try_module(tree: Path, module: Path, options: argparse.Namespace) -> tuple[int, int]:
    """Prints the changes of a module that survive; returns their number and that of all."""
    tests = [*mirroring_tests(module), *options.tests]
    started = time.monotonic()
    if failure := failure_of(tree, tests, limit_s=10 * options.limit):
        raise SystemExit(f"the tests of {module} fail without a change:\n{failure}")
    seconds = time.monotonic() - started
    original = (ROOT / module).read_bytes()
    mutants = mutants_of(original)
    rng = random.Random(f"{options.seed} {module}")
    chosen = sorted(rng.sample(mutants, min(options.mutants, len(mutants))))
    print(
        f"{module}: {len(chosen)} of {len(mutants)} changes, tests of {seconds:.0f} s", flush=True
    )
    num_survivors = 0
    for mutant in chosen:
        changed = mutant.source(original)
        (tree / module).write_bytes(changed)
        if not failure_of(tree, tests, limit_s=options.limit + 3 * seconds):
            num_survivors += 1
            old, new = (text.decode().splitlines(keepends=True) for text in (original, changed))
            sys.stdout.writelines(difflib.unified_diff(old, new, str(module), str(module), n=2))
            sys.stdout.flush()
    (tree / module).write_bytes(original)
    return num_survivors, len(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("modules", nargs="+", type=Path, metavar="MODULE", help="from the root")
    parser.add_argument("--mutants", type=int, default=10, help="most changes of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds beyond usual ones")
    parser.add_argument("--tests", nargs="+", default=[], help="to run in addition")
    options = parser.parse_args()
    if len(options.modules) > MOST_MODULES:
        parser.error(f"{len(options.modules)} modules; at most {MOST_MODULES} in a run")
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        counts = [try_module(Path(folder), module, options) for module in options.modules]
    survived, tried = map(sum, zip(*counts, strict=True))
    print(f"{survived} of {tried} changes survived")


if __name__ == "__main__":
    main()
