"""Which rows wait for an MTP layer, as the model computes them, once or again."""

import numpy as np

from signalbox_worker.runner.mtp.waiting_rows import WaitingRows, no_rows


def add(rows: WaitingRows, first: int, count: int) -> None:
    positions = np.arange(first, first + count)
    rows.add(first, positions + 100, np.repeat(positions[:, None], 2, axis=1).astype(np.float32))
    check(rows)


def check(rows: WaitingRows) -> None:
    positions = np.arange(rows.first, rows.first + len(rows))
    assert rows.token_ids.tolist() == (positions + 100).tolist()
    assert rows.states[:, 0].tolist() == positions.tolist()


def read(rows: WaitingRows, count: int) -> list[float]:
    found: list[float] = rows.read(count)[:, 0].tolist()
    check(rows)
    return found


def test_refused_drafts_are_replaced() -> None:
    rows = no_rows(5, 2)
    add(rows, 5, 3)
    add(rows, 6, 2)
    assert read(rows, 2) == [5, 6]
    assert (rows.first, rows.num_read, len(rows)) == (7, 2, 1)


def test_rows_that_are_computed_again_take_back_what_was_read() -> None:
    rows = no_rows(5, 2)
    add(rows, 5, 6)
    assert read(rows, 4) == [5, 6, 7, 8]
    add(rows, 7, 2)
    assert (rows.first, rows.num_read, len(rows)) == (7, 2, 2)


def test_nothing_before_a_gap_is_kept() -> None:
    for first in (4, 9):
        rows = no_rows(5, 2)
        add(rows, 5, 3)
        read(rows, 1)
        add(rows, first, 2)
        assert (rows.first, rows.num_read, len(rows)) == (first, 0, 2)
