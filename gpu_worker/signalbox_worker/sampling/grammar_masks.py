"""The masks of a step's structured outputs, within a bound on the CPU time of all of them."""

from collections.abc import Mapping
from typing import NamedTuple

from signalbox_contract.structured_output.grammar import GrammarError
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.batch.sequence_failures import STRUCTURED_OUTPUT
from signalbox_worker.sampling.compiled_grammar import Grammar
from signalbox_worker.sampling.token_constraints import Mask

MAX_STEP_CPU_S = 0.2
"""CPU time of a step's masks; those that are left then, which took longest in the step before, end.
256 sequences of usual schemas take 30 ms."""


class Masks(NamedTuple):
    """Allowed next tokens by sequence, or the reason why none is."""

    found: dict[int, Mask]
    """Masks of free text are left out, unless something may not follow."""
    refused: dict[int, str]
    cpu_ns: dict[int, int]
    """CPU time of each mask that was computed, or begun."""


def step_masks(asked: Mapping[int, tuple[Grammar, Int32Array]]) -> Masks:
    """Computes the masks of sequences, each given by its grammar and its output so far."""
    masks, cpu_ns = Masks({}, {}, {}), 0
    cheapest_first = sorted(asked, key=lambda owner: asked[owner][0].mask_ns)
    for owner in cheapest_first:
        grammar, output = asked[owner]
        if cpu_ns > MAX_STEP_CPU_S * 1e9:
            masks.refused[owner] = (
                f"{STRUCTURED_OUTPUT} takes too long for a token: those of the step took more than"
                f" {MAX_STEP_CPU_S * 1e3:g} ms"
            )
            continue
        try:
            if (mask := grammar.mask(output)) is not None:
                masks.found[owner] = mask
        except GrammarError as error:
            masks.refused[owner] = str(error)
        if grammar.mask_ns:
            masks.cpu_ns[owner] = grammar.mask_ns
            cpu_ns += grammar.mask_ns
    return masks
