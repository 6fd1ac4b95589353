"""The masks of a step's structured outputs, within a bound on the CPU time of all of them."""

from collections.abc import Mapping
from typing import NamedTuple

from signalbox_contract.structured_output.grammar import GrammarError
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.batch.sequence_failures import STRUCTURED_OUTPUT
from signalbox_worker.sampling.compiled_grammar import Grammar
from signalbox_worker.sampling.token_constraints import Mask, is_allowed

MAX_STEP_CPU_S = 0.2
"""CPU time of a step's masks; those that are left then, which took longest in the step before, end.
256 sequences of usual schemas take 30 ms."""

MAX_DRAFT_CPU_S = 0.05
"""CPU time of the masks behind a step's drafts; runs end where it is spent."""


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


class DraftedOutput(NamedTuple):
    """The output of a sequence, and drafts behind it."""

    grammar: Grammar
    token_ids: Int32Array
    """The output so far, then the drafts."""
    num_drafts: int


def draft_masks(asked: Mapping[int, DraftedOutput], known: Masks) -> dict[int, list[Mask | None]]:
    """Computes the masks behind the drafts of sequences; adds their costs to those of `known`.

    A sequence has fewer masks than drafts if a draft is not admitted, or the mask behind it fails.
    Such a failure does not end the sequence; the first mask of a later step may.

    Args: known: the masks before the drafts.
    """
    found: dict[int, list[Mask | None]] = {}
    left_ns = int(MAX_DRAFT_CPU_S * 1e9)
    for owner, one in asked.items():
        found[owner], cpu_ns = _masks_ahead(one, known.found.get(owner), left_ns)
        left_ns -= cpu_ns
        if cpu_ns:
            known.cpu_ns[owner] = known.cpu_ns.get(owner, 0) + cpu_ns
    return found


def _masks_ahead(
    one: DraftedOutput, mask: Mask | None, left_ns: int
) -> tuple[list[Mask | None], int]:
    """Returns the masks behind one sequence's drafts, and their CPU time."""
    token_ids, masks, cpu_ns = one.token_ids, list[Mask | None](), 0
    with one.grammar.ahead():
        for end in range(len(token_ids) - one.num_drafts, len(token_ids)):
            is_admitted = mask is None or is_allowed(mask, int(token_ids[end]))
            if cpu_ns > left_ns or not is_admitted:
                break
            try:
                mask = one.grammar.mask(token_ids[: end + 1])
            except GrammarError:
                break
            finally:
                cpu_ns += one.grammar.mask_ns
            masks.append(mask)
    return masks, cpu_ns
