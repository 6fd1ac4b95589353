"""Holds own blocks for what is no sequence; a pool counts them, and nothing is lost."""

import ast
from pathlib import Path

import pytest

import signalbox_scheduler
from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockCopy
from signalbox_scheduler.kv.hold import Hold


def made(num_taken: int = 3, *, num_blocks: int = 8) -> Hold:
    hold = Hold(BlockAllocator(num_blocks))
    hold.take(num_taken)
    return hold


def names(num: int) -> list[bytes]:
    return [bytes([number]) for number in range(num)]


def test_blocks_have_as_many_owners_as_holds() -> None:
    first = made()
    second = Hold(first.pool)
    second.share(first.blocks[:2])
    assert list(first.pool.num_owners().values()) == [2, 2, 1]
    first.pool.check({})
    first.release()
    assert first.pool.num_free == 6
    first.pool.check({})
    second.release()
    assert first.pool.num_free == 8
    first.pool.check({})


def test_a_block_of_a_sequence_and_of_a_hold_has_both_for_owners() -> None:
    hold = made(1)
    hold.pool.share(hold.blocks[0])
    with pytest.raises(AssertionError):
        hold.pool.check({})
    hold.pool.check({hold.blocks[0]: 1})


def test_a_hold_that_is_lost_with_its_blocks_is_noticed() -> None:
    pool = made().pool
    with pytest.raises(AssertionError):
        pool.check({})


def test_published_blocks_move_to_a_hold_and_are_found() -> None:
    hold = made(4)
    blocks, pool = hold.blocks, hold.pool
    first, second = names(2)
    published = hold.publish([first, None, second])
    assert (published.blocks, hold.blocks) == (blocks[:3], blocks[3:])
    assert [pool.find(first), pool.find(second)] == [blocks[0], blocks[2]]
    twin = Hold(pool)
    twin.take(1)
    twin.publish([first]).release()
    assert pool.find(first) == blocks[0], "another block held the same before"
    published.retract()
    assert not pool.hashes
    published.release()
    assert not pool.num_cached
    pool.check({})


def test_a_hold_is_split_and_put_together() -> None:
    hold = made(4)
    blocks, pool = hold.blocks, hold.pool
    rest = hold.split(1)
    assert (hold.blocks, rest.blocks) == (blocks[:1], blocks[1:])
    rest.drop(blocks[2])
    rest.absorb(hold)
    assert (hold.blocks, rest.blocks) == ([], [blocks[1], blocks[3], blocks[0]])
    with pytest.raises(AssertionError):
        rest.absorb(made())
    pool.check({})


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({}, [9, 2, 1, 0]),
        ({"oldest_first": True}, [9, 0, 1, 2]),
        ({"evict_first": True}, [2, 1, 0, 9]),
    ],
)
def test_released_blocks_are_evicted_in_order(options: dict[str, bool], order: list[int]) -> None:
    hold = made(0, num_blocks=10)
    before = Hold(hold.pool)
    before.take(1)
    before.publish([b"before"]).release()
    hold.take(3)
    published = hold.publish(names(3))
    numbers = dict(zip([*published.blocks, hold.pool.find(b"before")], [0, 1, 2, 9], strict=True))
    published.release(**options)
    assert [numbers[block] for block in hold.pool.cached_blocks] == order
    hold.pool.check({})


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_copy_that_is_still_planned_is_made_for_other_owners_alone(is_shared: bool) -> None:
    hold = made(2)
    pool = hold.pool
    hold = hold.publish(names(2))
    copies = [BlockCopy(src, dst) for src, dst in enumerate(hold.blocks)]
    pool.incoming += copies
    other = Hold(pool)
    if is_shared:
        other.share(hold.blocks[:1])
    hold.release()
    assert pool.incoming == copies[:is_shared]
    assert [pool.find(name) is not None for name in names(2)] == [is_shared, False]
    pool.check({})


POOLS = {"gpu", "cpu", "pool"}
"""Names under which modules know a pool."""
READS = {
    "blocks_of",
    "cached_blocks",
    "find",
    "hashes",
    "is_cached",
    "is_private",
    "is_shared",
    "num_blocks",
    "num_blocks_of",
    "num_cached",
    "num_free",
    "num_holds",
    "num_owners",
    "room_for",
    "share_in_use",
}
"""What other folders may ask a pool."""


def name_of(node: ast.expr) -> str:
    """Returns the last name of `self._blocks.gpu`, or of a variable."""
    return str(getattr(node, "attr", getattr(node, "id", ""))).lstrip("_")


def pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def changes(source: str) -> list[str]:
    """Returns what a module does to pools, or with allocators of its own.

    A pool has no other name there than those that are looked for.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = name_of(node.value)
            if owner in POOLS and node.attr not in READS:
                found.append(f"{owner}.{node.attr}, line {node.lineno}")
        elif isinstance(node, ast.Assign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target, value in (pair for one in targets for pair in pairs(one, node.value)):
                if name_of(value) in POOLS and name_of(target) not in POOLS:
                    found.append(f"a pool by another name, line {node.lineno}")
        elif isinstance(node, ast.arg):
            kind = ast.unparse(node.annotation) if node.annotation else ""
            if "BlockAllocator" in kind and node.arg not in POOLS:
                found.append(f"a pool by another name, line {node.lineno}")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "BlockAllocator":
            found.append(f"BlockAllocator(), line {node.lineno}")
    return found


def test_only_the_folder_of_the_allocator_changes_pools() -> None:
    assert set(dir(BlockAllocator(1))) >= READS
    for line in (
        "self._blocks.gpu.share(1)",
        "cpu.free(1)",
        "self._pool.incoming = []",
        "n, blocks = 1, self._blocks.gpu",
        "def free(blocks: BlockAllocator): ...",
    ):
        assert changes(line), line
    root = Path(signalbox_scheduler.__file__).parent
    paths = [path for path in root.rglob("*.py") if path.parent != root / "kv"]
    assert paths
    assert not {str(path): found for path in paths if (found := changes(path.read_text("utf-8")))}
