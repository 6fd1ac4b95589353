"""How one request is to be generated, every default applied."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Checked and resolved; see inference.proto."""

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Checked and resolved; see inference.proto for the meaning of the fields."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """The client's and, unless ignore_eos, the model's end-of-sequence ids."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    num_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    typical_p: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens that are never completed."""
    num_prompt_logprobs: int | None = None
    structured_output: tuple[str, ...] | None = None
    """The kind, as the proto names it, and its texts."""
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
