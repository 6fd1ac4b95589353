"""Log probabilities of choices by the server's tokenizer, a generated answer's exact match."""

import json
from pathlib import Path

import lm_eval
from demo import ANSWER, HTTP, MODEL, QUESTION
from lm_eval.tasks import TaskManager

CHOICES = [
    {"question": "The capital of France is", "choices": ["Paris", "a banana of wood"], "answer": 0},
    {"question": "Two plus two equals", "choices": ["purple elephants", "four"], "answer": 1},
]


def write_task(name: str, documents: list[dict[str, object]], **fields: object) -> None:
    """Writes a task and its documents into the working folder; YAML takes JSON."""
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    Path(f"{name}.jsonl").write_text(lines)
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        **fields,
    }
    Path(f"{name}.yaml").write_text(json.dumps(task))


write_task(
    "choices",
    CHOICES,
    output_type="multiple_choice",
    doc_to_choice="{{choices}}",
    metric_list=[{"metric": "acc"}],
)
write_task(
    "answer",
    [{"question": QUESTION, "answer": ANSWER}],
    output_type="generate_until",
    generation_kwargs={"until": ["\n\n"], "max_gen_toks": 24, "temperature": 0},
    metric_list=[{"metric": "exact_match"}],
)
tasks = TaskManager(include_path=".", include_defaults=False)

found = lm_eval.simple_evaluate(
    model="local-completions",
    model_args={
        "model": MODEL,
        "base_url": f"{HTTP}/completions",
        "tokenizer_backend": "remote",
        "max_length": 2048,
    },
    tasks=["choices"],
    task_manager=tasks,
)
assert found["results"]["choices"]["acc,none"] == 1
[[(log_probability, is_greedy)], [(other, other_is_greedy)]] = found["samples"]["choices"][0][
    "resps"
]
assert other < log_probability < 0
assert (is_greedy, other_is_greedy) == (True, False)

found = lm_eval.simple_evaluate(
    model="local-chat-completions",
    model_args={
        "model": MODEL,
        "base_url": f"{HTTP}/chat/completions",
        "tokenizer_backend": None,
    },
    tasks=["answer"],
    task_manager=tasks,
    apply_chat_template=True,
)
assert found["results"]["answer"]["exact_match,none"] == 1
assert found["samples"]["answer"][0]["resps"] == [[ANSWER]]
