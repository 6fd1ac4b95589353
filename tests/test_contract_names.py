"""A public name is in contract/ only if two of the packages above it import it."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from tests.test_imports import FOLDERS

USERS = (
    "signalbox_rpc",
    "signalbox_router",
    "signalbox_scheduler",
    "signalbox_worker",
    "signalbox",
)
HALVES = {"encode": "decode", "pack": "unpack", "write": "read"}
"""One service encodes what another decodes, so both halves of a codec have the users of both."""
FILES = "signalbox_contract.tokenizer_files"
STRUCTURED = "signalbox_contract.structured_output"
ONE_USER = {
    "signalbox_contract.errors.Cancelled": "from_code makes one exception for each Code",
    "signalbox_contract.errors.Unauthenticated": "from_code makes one exception for each Code",
    "signalbox_contract.errors.MAX_VALUE_CHARS": "THREAT_MODEL.md names it",
    "signalbox_contract.errors.MAX_MESSAGE_CHARS": "THREAT_MODEL.md names it",
    "signalbox_contract.description_bounds.MAX_ITEMS": "THREAT_MODEL.md names it",
    "signalbox_contract.description_bounds.MAX_TEXT_CHARS": "THREAT_MODEL.md names it",
    f"{STRUCTURED}.grammar": "the router runs the module as a process instead of importing it",
    f"{STRUCTURED}.grammar_cost.GROWTH_BYTES": "GrammarCost counts it; tests of two services do",
    f"{STRUCTURED}.grammar_cost.MAX_LEXER_STATES": "GrammarCost counts what the worker allows",
    "signalbox_contract.model.MAX_BLOCKS": "THREAT_MODEL.md names it",
    "signalbox_contract.model.MAX_VOCABULARY": "ModelInfo.check() has it, for both readers",
    "signalbox_contract.request.MAX_AGE_S": "THREAT_MODEL.md names it",
    "signalbox_contract.sampling_params.MAX_ITEMS": "find_fault counts, for both readers",
    "signalbox_contract.model.STORE_KINDS": "WorkerCapacity.check() has it",
    "signalbox_contract.model.encode_rank": "encode_capacity calls it, as reports do",
    "signalbox_contract.step_result.StageTimings": "the scheduler adds them up as Stages",
    "signalbox_contract.sections.store_moves.HASH_BYTES": "its decoder has it, for the worker",
    f"{FILES}.MAX_TOKENIZER_BYTES": "THREAT_MODEL.md names it for both readers",
    f"{FILES}.MAX_CHUNK_BYTES": "split_files counts it; a profile is sent alike",
    f"{FILES}.TokenizerTooLarge": "raised for both; the router takes ValueError",
}
"""Why a name, or the names of a module, may have fewer users."""


def public_names(source: str) -> dict[str, ast.stmt]:
    """Returns the public names that a module defines at its top, with their definitions."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found[node.name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
    return {name: node for name, node in found.items() if not name.startswith("_")}


def names_used(source: str) -> Iterator[str]:
    """Yields "signalbox_contract.module.name" for each name that a source imports, or reads of a
    module."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.ImportFrom)
            or (node.module or "").split(".")[0] != "signalbox_contract"
        ):
            continue
        for alias in node.names:  # of a module, or a module of a folder
            yield (full := f"{node.module}.{alias.name}")
            modules[alias.asname or alias.name] = full
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in modules:
                yield f"{modules[module]}.{name}"


def types_named(definition: ast.stmt) -> set[str]:
    """Returns the names in the annotations of a function, or of a class and its methods."""
    annotations: list[ast.expr | None] = []
    for node in ast.walk(definition):
        match node:
            case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation):
                annotations.append(annotation)
            case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns):
                annotations.append(returns)
    parts = (part for one in annotations if one is not None for part in ast.walk(one))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def other_half(name: str) -> str:
    first, _, rest = name.partition("_")
    mates = HALVES | {half: mate for mate, half in HALVES.items()}
    return "_".join(filter(None, (mates.get(first, first), rest)))


def short_of_users(contract: Mapping[str, str], users: Mapping[str, list[str]]) -> set[str]:
    """Returns the public names of contract/ that fewer than two packages import.

    A name that another module of contract/ imports, and a type that the signature of another name
    has, are there for these.

    Args:
        contract: sources by module.
        users: sources of each package.
    """
    used_by: dict[str, set[str]] = defaultdict(set)
    for package, sources in users.items():
        for source in sources:
            for name in names_used(source):
                used_by[name].add(package)
    inside = {name for source in contract.values() for name in names_used(source)}
    short = set()
    for module, source in contract.items():
        names = public_names(source)
        in_signatures = {
            one for name, node in names.items() for one in types_named(node) if one != name
        }
        for name in names.keys() - in_signatures:
            full = f"{module}.{name}"
            if (
                full not in inside
                and len(used_by[full] | used_by[f"{module}.{other_half(name)}"]) < 2
            ):
                short.add(full)
    return short


def sources(package: str) -> dict[str, str]:
    return {
        ".".join(path.relative_to(FOLDERS[package].parent).with_suffix("").parts): path.read_text(
            encoding="utf-8"
        )
        for path in FOLDERS[package].rglob("*.py")
    }


def test_two_packages_import_each_public_name_of_contract() -> None:
    users = {package: list(sources(package).values()) for package in USERS}
    short = short_of_users(sources("signalbox_contract"), users)
    reasons = {name: {name, name.rpartition(".")[0]} & ONE_USER.keys() for name in short}
    assert not [name for name in sorted(short) if not reasons[name]]
    assert set().union(*reasons.values()) == ONE_USER.keys(), "a reason that no name needs"


USER = "from signalbox_contract.m import f"
MODULE = "def f() -> None: ..."


@pytest.mark.parametrize(
    ("module", "router", "worker", "is_short"),
    [
        (MODULE, USER, USER, False),
        (MODULE, USER, "from signalbox_contract import m\nm.f()", False),
        (MODULE, USER, "def g():\n    from signalbox_contract.m import f", False),
        (MODULE, USER, "", True),
        (MODULE, "", "", True),
        (MODULE, USER, "from signalbox_contract import m\nm.g()", True),
        ("_f = 1", "", "", False),
        ("F: int = 1", "", "", True),
        ("class T: ...\ndef f(t: list[T]) -> None: ...", USER, USER, False),
        ("def encode_x(): ...\ndef decode_x(): ...", "from signalbox_contract.m import encode_x",
         "from signalbox_contract.m import decode_x", False),
    ],
)  # fmt: skip
def test_a_name_with_one_user_is_found(
    module: str, router: str, worker: str, is_short: bool
) -> None:
    users = {"signalbox_router": [router], "signalbox_worker": [worker]}
    assert bool(short_of_users({"signalbox_contract.m": module}, users)) is is_short
