"""Each field of sequences and of their groups is written from one folder of the scheduler.

The module that has the class may write it, too: in its methods, which other modules call.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields

from signalbox_scheduler.requests.sequence_group import BeamGroup, Sequence
from signalbox_scheduler.requests.suspicion import Suspicion
from signalbox_scheduler.requests.timeline import GroupTimes
from tests.test_imports import FOLDERS

PACKAGE = FOLDERS["signalbox_scheduler"]
OWNERS = {
    PACKAGE / "requests/sequence_group.py": {
        field.name for of in (Sequence, BeamGroup) for field in fields(of)
    },
    PACKAGE / "requests/suspicion.py": {field.name for field in fields(Suspicion)},
    PACKAGE / "requests/timeline.py": {field.name for field in fields(GroupTimes)},
}
CHANGING = {"append", "extend", "insert", "pop", "clear", "update", "remove"}
"""Methods that change a list or a dictionary."""


def written(tree: ast.AST) -> Iterator[str]:
    """Yields the attributes of variables that a module assigns, deletes or changes in place."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign():
                targets = node.targets
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Delete():
                targets = node.targets
            case ast.Call(func=ast.Attribute(value=changed, attr=method)) if method in CHANGING:
                targets = [changed]
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                while isinstance(one, ast.Subscript):
                    one = one.value
                if isinstance(one, ast.Attribute) and not _is_self(one.value):
                    yield one.attr


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "self"


def test_each_field_of_sequences_and_groups_is_written_from_one_folder() -> None:
    names = set.union(*OWNERS.values())
    writers: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if path not in OWNERS:
            folder = path.relative_to(PACKAGE).parts[0]
            for name in written(ast.parse(path.read_text(encoding="utf-8"))):
                writers[name].add(folder)
    shared = {name: sorted(writers[name]) for name in sorted(names) if len(writers[name]) > 1}
    assert not shared
