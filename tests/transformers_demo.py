"""GGUF files as transformers runs them, and its greedy tokens at the price of a few forward passes.

The demo model is loaded once in a process, and so is the content of its file, which transformers
reads five times: both take seconds.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gguf
import torch

DEMO = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


read = functools.cache(gguf.GGUFReader)
"""Reads a file once, by its path."""


class Reference(NamedTuple):
    """transformers' tokenizer and float32 model."""

    tokenizer: Any
    model: Any


@functools.cache
def demo() -> Reference:
    from transformers import AutoTokenizer

    with mock.patch("gguf.GGUFReader", read):
        tokenizer = AutoTokenizer.from_pretrained(str(DEMO.parent), gguf_file=DEMO.name)
    return Reference(tokenizer, load_model(DEMO))


def load_model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with mock.patch("gguf.GGUFReader", read):
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32
        )
    return model.eval()


def greedy_texts(
    model: Any, prompts: Sequence[str], guesses: Sequence[Sequence[int]]
) -> list[list[int]]:
    """What a model of the demo's vocabulary generates after each prompt, as long as its guess."""
    tokenizer = demo().tokenizer
    eos = tokenizer.eos_token_id
    return [
        greedy_tokens(model, tokenizer(prompt)["input_ids"], guess, eos=eos)
        for prompt, guess in zip(prompts, guesses, strict=True)
    ]


@torch.inference_mode()
def greedy_tokens(
    model: Any, prompt: Sequence[int], guess: Sequence[int], *, eos: int | None = None
) -> list[int]:
    """Returns the model's greedy tokens, as many as guessed, the same whatever is guessed.

    One forward pass over the prompt and a guess says what is likeliest at every position, so a
    guess that is right costs one pass instead of one for each token. Of a wrong one the tokens
    before the first mistake are kept, and the one that corrects it (speculative decoding,
    Leviathan et al., ICML 2023).

    Args:
        eos: a token that is never taken, as with transformers' min_new_tokens.
    """
    known: list[int] = []
    while len(known) < len(guess):
        assumed = [*known, *guess[len(known) :]]
        tokens = torch.tensor([[*prompt, *assumed[:-1]]])
        logits = model(tokens, logits_to_keep=len(assumed)).logits[0]
        if eos is not None:
            logits[:, eos] = -torch.inf
        likeliest = logits.argmax(dim=-1).tolist()
        num_right = next(
            (i for i, (a, b) in enumerate(zip(assumed, likeliest, strict=True)) if a != b),
            len(guess),
        )
        known = likeliest[: num_right + 1]
    return known
