"""An evaluation's score, text, usage and finish reason, and the refusal that ends another."""

import os

from demo import (
    ANSWER,
    BAD_TEMPERATURE,
    COMPLETION_TOKENS,
    HTTP,
    MODEL,
    PROMPT_TOKENS,
    QUESTION,
    REFUSAL,
)

# Inspect reads the address of a provider that it has no module for from these two.
os.environ.update(SIGNALBOX_BASE_URL=HTTP, SIGNALBOX_API_KEY="none")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.scorer import match
from inspect_ai.solver import generate


def evaluate(temperature: float) -> EvalLog:
    question = Task(
        dataset=[Sample(input=QUESTION, target=ANSWER)],
        solver=generate(),
        scorer=match(location="exact"),
    )
    model = f"openai-api/signalbox/{MODEL}"
    [log] = eval(
        question,
        model=model,
        temperature=temperature,
        max_tokens=24,
        display="none",
        log_dir="inspect",
    )
    return log


log = evaluate(0)
assert log.status == "success", log.error
assert log.results.scores[0].metrics["accuracy"].value == 1
output = log.samples[0].output
assert (output.completion, output.stop_reason) == (ANSWER, "stop")
assert output.input_context_tokens == PROMPT_TOKENS
assert output.usage.output_tokens == COMPLETION_TOKENS

log = evaluate(BAD_TEMPERATURE)
assert log.status == "error"
assert REFUSAL in log.error.message
