"""How one request is to be generated, every default applied."""

from dataclasses import dataclass

from rpc.sampling_params import SamplingParams

GREEDY_BELOW = 1e-5
"""A lower temperature is greedy: dividing by it would overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Checked and resolved; see inference.proto."""

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """Checked and resolved; see inference.proto for the meaning of the fields."""

    sampling: SamplingParams
    """What the scheduler and the worker get of it. `stop_token_ids` are the client's and, unless
    ignore_eos, the model's end-of-sequence ids."""
    max_tokens: int
    max_tokens_is_default: bool = False
    """True if the client set no max_tokens, so that the scheduler may lower it to what fits."""
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    n: int = 1
    best_of: int | None = None
    hides_logprobs: bool = False
    """Whether log probabilities are there to choose the best sequences, and not for the client."""
    beam_search: BeamSearch | None = None
    skip_special_tokens: bool = True

    @property
    def num_sequences(self) -> int:
        """Sequences that the scheduler is asked for, of which the client gets `n`."""
        return self.best_of or self.n

    @property
    def is_ranked(self) -> bool:
        """Whether the router chooses which sequences the client gets."""
        return self.num_sequences > self.n
