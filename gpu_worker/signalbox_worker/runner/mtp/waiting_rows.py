"""Hidden states of one sequence that the model has computed, and its MTP layer has not read yet."""

from dataclasses import dataclass

import numpy as np

from signalbox_worker.batch.arrays import FloatArray, Int64Array


@dataclass(slots=True)
class PredictedToken:
    """The token that the layer predicts behind the last row that it has read."""

    token_id: int
    state: FloatArray
    """[hidden_size], its own normed result."""


@dataclass(slots=True)
class WaitingRows:
    """Rows of neighbouring positions, in order. The layer has read those before them, as many as
    its KV of the sequence has; positions before these were computed elsewhere or earlier."""

    first: int
    """Position of the first of them."""
    token_ids: Int64Array
    states: FloatArray
    """[num_rows, hidden_size], not normed."""
    num_read: int = 0
    """Rows that the layer has read, before `first`."""
    prediction: PredictedToken | None = None
    """The token behind the rows that were read; None if the last of them was read without one."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, first: int, token_ids: Int64Array, states: FloatArray) -> None:
        """Adds rows that the model has computed; it begins again at a position if drafts were
        refused, or a step was run again. Behind a gap, all before it is dropped."""
        if not self.first - self.num_read <= first <= self.first + len(self):
            self.first, self.num_read = first, 0
            self.drop_from(0)
        elif first < self.first:
            self.num_read -= self.first - first
            self.first = first
            self.drop_from(0)
        else:
            self.drop_from(first - self.first)
        self.token_ids = np.concatenate([self.token_ids, token_ids])
        self.states = np.concatenate([self.states, states])

    def drop_from(self, row: int) -> None:
        """Drops the rows from one on."""
        self.token_ids, self.states = self.token_ids[:row], self.states[:row]

    def read(self, count: int) -> FloatArray:
        """Takes the first rows, which the layer reads now; returns their hidden states."""
        taken = self.states[:count]
        self.token_ids, self.states = self.token_ids[count:], self.states[count:]
        self.first += count
        self.num_read += count
        self.prediction = None
        return taken


def no_rows(first: int, width: int) -> WaitingRows:
    """Returns no rows, before a position."""
    states = np.empty((0, width), dtype=np.float32)
    return WaitingRows(first, np.empty(0, dtype=np.int64), states)
