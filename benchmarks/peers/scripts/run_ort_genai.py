"""ONNX Runtime GenAI."""

import json

import numpy as np
import onnxruntime_genai as og
from serve_lines import parse_arguments, serve


def main() -> None:
    arguments = parse_arguments()
    config = og.Config(arguments.model)
    threads = {"intra_op_num_threads": arguments.num_threads, **json.loads(arguments.options)}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    model = og.Model(config)

    def generate(prompts: list[list[int]], max_tokens: int) -> tuple[list[int], int | None]:
        """Generates for prompts of one length; a minimum length keeps it from ending early."""
        num_prompt = len(prompts[0])
        length = num_prompt + max_tokens
        params = og.GeneratorParams(model)
        params.set_search_options(
            batch_size=len(prompts), max_length=length, min_length=length, do_sample=False
        )
        generator = og.Generator(model, params)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        num_tokens = [len(generator.get_sequence(row)) - num_prompt for row in range(len(prompts))]
        return num_tokens, None

    serve(arguments.port, generate)


if __name__ == "__main__":
    main()
