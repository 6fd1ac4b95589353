"""transformers' continuous batching."""

import json

import torch
from serve_lines import parse_arguments, serve
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

PAGE_TOKENS, CACHE_TOKENS, STEP_TOKENS = 256, 16384, 2048
"""Left alone it takes most of the memory for its cache; these hold the largest load."""


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.num_threads)
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=torch.bfloat16, attn_implementation="paged|sdpa"
    )
    options = {
        "page_size": PAGE_TOKENS,
        "num_blocks": CACHE_TOKENS // PAGE_TOKENS,
        "max_batch_tokens": STEP_TOKENS,
    }
    batching = ContinuousBatchingConfig(**options | json.loads(arguments.options))

    def generate(prompts: list[list[int]], max_tokens: int) -> list[int]:
        config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1)
        results = model.generate_batch(
            prompts, generation_config=config, continuous_batching_config=batching
        )
        return [len(result.generated_tokens) for result in results.values()]

    serve(arguments.port, generate)


if __name__ == "__main__":
    main()
