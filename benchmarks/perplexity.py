"""What a form of the weights, or of K and V, costs beside another: perplexity and greedy tokens.

    python -m benchmarks.perplexity MODEL [--text FILE ...] [--context 512] [--forms float32 ...]

As llama-perplexity defines it: the text's tokens in chunks of `context`, the rest left out; a chunk
begins with the BOS token if the tokenizer adds one; its first half is context only, and of the
second half each token after the first is predicted. The last column is the share of these places
where the likeliest token is another one than in the first form. Computed through `LLM`, as users
would, with prompt_logprobs. The text is our own, so that no model has read it.

fp8 is for CUDA; on a CPU it is computed by the references of its ops, which round weights and
activations to the same codes.
"""

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from signalbox.llm import LLM, SamplingParams

TEXT = Path(__file__).parent / "texts" / "signal_box.txt"
_IN_PYTORCH = {"dtype": "bfloat16", "quantization": "none", "cpu_backend": "torch"}
FORMS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32", "quantization": "none"},
    "bfloat16": {"dtype": "bfloat16", "quantization": "none"},
    "auto": {},
    "int16": {"dtype": "int16"},
    "gguf": {"quantization": "gguf"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "torch": _IN_PYTORCH,
    "float32_kv": {"kv_cache_dtype": "float32"},
    "int8_kv": {"kv_cache_dtype": "int8"},
    "fp8_kv": {"kv_cache_dtype": "fp8"},
    "torch_int8_kv": _IN_PYTORCH | {"kv_cache_dtype": "int8"},
    "torch_fp8_kv": _IN_PYTORCH | {"kv_cache_dtype": "fp8"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8", "cpu_backend": "torch"},
}
"""Options of LLM for each form."""


class Predicted(NamedTuple):
    """What a form makes of a text."""

    perplexity: float
    greedy: list[int]
    """The likeliest token of each place."""

    def share_that_differs(self, other: "Predicted") -> float:
        """Returns the share of places with another likeliest token."""
        pairs = zip(self.greedy, other.greedy, strict=True)
        return sum(mine != its for mine, its in pairs) / len(self.greedy)


_CAPABILITY = "signalbox_worker.runner.loading.loaded_model.compute_capability"


def chunks_of(llm: LLM, text: str, context: int) -> list[list[int]]:
    """Cuts the text's tokens into whole chunks."""
    encode = llm.get_tokenizer().encode
    token_ids = encode(text, add_special_tokens=True)
    bare = encode(text, add_special_tokens=False)
    bos = token_ids[: len(token_ids) - len(bare)]
    starts = range(0, len(token_ids) - context + 1, context)
    return [bos + token_ids[start + len(bos) : start + context] for start in starts]


def predict(llm: LLM, chunks: list[list[int]]) -> Predicted:
    """Predicts tokens; perplexity is e to the mean negative log probability of those that come."""
    asks = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    losses: list[float] = []
    greedy: list[int] = []
    outputs = llm.generate([{"prompt_token_ids": chunk} for chunk in chunks], asks, use_tqdm=False)
    for chunk, output in zip(chunks, outputs, strict=True):
        assert output.prompt_logprobs is not None
        for position in range(len(chunk) // 2 + 1, len(chunk)):
            found = output.prompt_logprobs[position]
            assert found is not None
            losses.append(-found[chunk[position]].logprob)
            greedy.append(max(found, key=lambda token: found[token].logprob))
    return Predicted(math.exp(sum(losses) / len(losses)), greedy)


def measure(model: str, form: str, *, text: str, context: int) -> Predicted:
    """Loads a model in one form and predicts a text."""
    with (
        patch(_CAPABILITY, lambda _: (8, 9)),
        LLM(model, kv_cache_memory=0.5, max_num_seqs=8, **FORMS[form]) as llm,
    ):
        chunks = chunks_of(llm, text, context)
        if not chunks:
            raise SystemExit(f"the text has fewer than {context} tokens; lower --context")
        return predict(llm, chunks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, nargs="+", default=[TEXT], help="one after the other")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    args = parser.parse_args()
    text = "".join(path.read_text(encoding="utf-8") for path in args.text)
    first: Predicted | None = None
    for form in args.forms:
        found = measure(args.model, form, text=text, context=args.context)
        first = first or found
        more = found.perplexity / first.perplexity - 1
        differs = found.share_that_differs(first)
        print(f"{form:12} {found.perplexity:9.4f} {more:+8.2%} {differs:8.2%}", flush=True)


if __name__ == "__main__":
    main()
