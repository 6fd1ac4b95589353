"""OpenVINO GenAI's continuous batching."""

import json

import numpy as np
import openvino as ov
import openvino_genai as genai
from serve_lines import parse_arguments, serve


def main() -> None:
    arguments = parse_arguments()
    properties = {"INFERENCE_NUM_THREADS": arguments.num_threads, **json.loads(arguments.options)}
    pipeline = genai.ContinuousBatchingPipeline(
        arguments.model, genai.SchedulerConfig(), "CPU", properties
    )

    def generate(prompts: list[list[int]], max_tokens: int) -> tuple[list[int], int | None]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = max_tokens
        config.ignore_eos = True
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = pipeline.generate(inputs, [config] * len(inputs))
        return [len(result.m_generation_ids[0]) for result in results], None

    serve(arguments.port, generate)


if __name__ == "__main__":
    main()
