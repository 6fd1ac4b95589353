"""The checked parameters of one request's generation, with every default applied."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from signalbox_contract.request import BeamSearchParams
from signalbox_contract.sampling_params import SamplingParams
from signalbox_router.prompt.served_model import ServedModel


class SharedFields(dict[str, Any]):
    """Sampling fields that are set, by proto name; requests that share them check them once.

    They must not change after the check.
    """

    checked_for: ServedModel | None = None


class EncodedFields(NamedTuple):
    """Tokens of sampling fields that are texts."""

    bad_words: tuple[tuple[int, ...], ...] = ()
    prediction: tuple[int, ...] = ()
    """Tokens that the client expects as the output; empty if the request names none."""


NO_TEXTS = EncodedFields()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """Parameters, checked and complete; see inference.proto for the meaning of the fields."""

    sampling: SamplingParams
    """Parameters for the scheduler and the worker. `stop_token_ids` are the client's and, unless
    ignore_eos, the model's end-of-sequence ids."""
    max_tokens: int
    max_tokens_is_default: bool = False
    """True if the scheduler may lower it: the client set none, or its API has it cut."""
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    n: int = 1
    best_of: int | None = None
    hides_logprobs: bool = False
    """True if log probabilities only choose among sequences, and are not sent to the client."""
    beam_search: BeamSearchParams | None = None
    skip_special_tokens: bool = True
    speculation: bool = True
    """False computes no drafts."""
    prediction: tuple[int, ...] = ()
    """Tokens that the client expects as the output; empty if the request names none."""

    @property
    def num_sequences(self) -> int:
        """Number of sequences that are generated, of which the client gets `n`."""
        return self.best_of or self.n

    @property
    def is_ranked(self) -> bool:
        """True if the router chooses the sequences that the client gets."""
        return self.num_sequences > self.n


POOLED = GenerationParams(sampling=SamplingParams(), max_tokens=1)
"""Parameters of a request that is pooled, from which nothing is drawn."""
