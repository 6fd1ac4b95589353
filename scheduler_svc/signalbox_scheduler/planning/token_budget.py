"""Computes how many tokens a step may compute, and how many of them may be of prompts."""

from signalbox_scheduler.config import StepLimits

FEW_DECODES, MANY_DECODES = 8, 16
"""Decodes beside which a chunk of a spread prompt gets at least an eighth, or a quarter, of the
tokens of a step. For a number of decodes between these the share is between these, too."""


def token_budget(limits: StepLimits, *, memory_tokens: int | None) -> int:
    """Returns the tokens of a step where memory suffices for `memory_tokens`, if it says so.

    Never fewer than sequences: all that decode come along, and the worker cuts what it must.
    """
    if memory_tokens is None:
        return limits.max_num_batched_tokens
    return min(limits.max_num_batched_tokens, max(memory_tokens, limits.max_num_seqs))


def prompt_budget(limits: StepLimits, *, num_prompt_tokens: int, num_decodes: int) -> int:
    """Returns how many tokens of the prompts that are left a step of decodes takes along.

    A share of a burst of prompts delays decodes little, but must be worth a pass over the weights:
    the more sequences decode, the more of them wait for each chunk of a prompt.
    """
    share = -(-num_prompt_tokens // limits.prefill_spread_steps)
    part = min(max(num_decodes, FEW_DECODES), MANY_DECODES)
    return max(share, limits.max_num_batched_tokens * part // (4 * MANY_DECODES), 1)
