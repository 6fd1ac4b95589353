"""Bounds the totals of one HTTP request: its number of prompts times the cost of each.

Each prompt of a list becomes a request of its own, with the same lists and as many sequences.
"""

from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.requests.types import CompletionBody, GenerationBody
from signalbox_router.params import token_validation

MAX_SHARED_ITEMS = 1 << 22
"""Most prompts times items of the lists that each is sent with: 16 MiB of token ids to the
scheduler. 16 prompts may each have a vocabulary of 256,000 as `allowed_token_ids`, 1,024 prompts
1,024 biases and all other lists."""
MAX_REPORTED = 1 << 16
"""Most prompts times sequences times tokens reported at each position, the sampled one included:
1,024 prompts may have n=64, or n=3 with 20 logprobs."""
_LISTS = (
    "stop", "stop_token_ids", "allowed_token_ids", "logit_bias", "bad_words", "logprob_token_ids",
)  # fmt: skip


def check_lengths(body: GenerationBody) -> None:
    """Checks the lengths of lists before any of them is converted. Raises InvalidArgument."""
    token_validation.check_counts({name: _length(body, name) for name in _LISTS})


def check_products(body: CompletionBody, num_prompts: int) -> None:
    """Raises BadRequest if a total is too large."""
    num_items = num_prompts * sum(_length(body, name) for name in _LISTS)
    if num_items > MAX_SHARED_ITEMS:
        longest = max(_LISTS, key=lambda name: _length(body, name))
        raise BadRequest(
            f"{longest}: {num_prompts} prompts with {num_items // num_prompts} items in lists each;"
            f" at most {MAX_SHARED_ITEMS} for all prompts",
            longest,
        )
    reported = num_prompts * _num_reported(body)
    if num_prompts > 1 and reported > MAX_REPORTED:
        raise BadRequest(
            f"prompt: {num_prompts} prompts with {reported // num_prompts} tokens reported at each"
            f" position (sequences and their logprobs); at most {MAX_REPORTED} for all prompts",
            "prompt",
        )


def _length(body: GenerationBody, name: str) -> int:
    value = getattr(body, name)
    return 1 if isinstance(value, str) else len(value or ())


def _num_reported(body: CompletionBody) -> int:
    """Returns the tokens reported at one position, over the prompt and all sequences."""
    num_sequences = max(body.n or 1, body.best_of or 1)
    num_logprobs = max(body.logprobs or 0, len(body.logprob_token_ids or ()))
    return num_sequences * (1 + num_logprobs) + (body.prompt_logprobs or 0)
