"""Our `LLM`."""

import json

from serve_lines import parse_arguments, serve

from signalbox.llm.llm import LLM
from signalbox.llm.requests.sampling_params import SamplingParams


def main() -> None:
    arguments = parse_arguments()
    llm = LLM(arguments.model, num_threads=arguments.num_threads, **json.loads(arguments.options))

    def generate(prompts: list[list[int]], max_tokens: int) -> tuple[list[int], int | None]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(asked, params, use_tqdm=False)
        num_tokens = [len(output.outputs[0].token_ids) for output in outputs]
        return num_tokens, sum(output.usage.cached_tokens for output in outputs)

    serve(arguments.port, generate)


if __name__ == "__main__":
    main()
