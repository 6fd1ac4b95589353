"""Returns the logits of drawn tokens, for the rows that ask for them."""

from collections.abc import Callable

import numpy as np

from signalbox_worker.batch.arrays import FloatArray, Int32Array, Int64Array
from signalbox_worker.batch.batch import BatchOutput
from signalbox_worker.batch.sampling_rows import SampleRows


def add_logits(
    samples: BatchOutput,
    rows: SampleRows,
    logits_row: Int64Array | None,
    pick: Callable[[Int64Array, Int32Array], FloatArray],
) -> None:
    """Adds the logits of the tokens that `rows` have drawn; some of them return theirs.

    Args:
        logits_row: [num_rows], row of each in the logits; None: they are the rows.
        pick: Returns the logits at some rows and tokens, as the model has made them.
    """
    assert rows.returns_logits is not None, "else there is nothing to add"
    returned = rows.returns_logits.copy()
    returned[list(samples.failed)] = False
    picked = np.flatnonzero(returned)
    samples.logits = np.full(len(rows), np.nan, dtype=np.float32)
    places = picked if logits_row is None else logits_row[picked]
    samples.logits[picked] = pick(places, samples.token_ids[picked])
