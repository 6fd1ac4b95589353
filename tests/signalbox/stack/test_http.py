"""The HTTP API of `signalbox serve`, with OpenAI's SDK."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.signalbox.stacks import serve, signalbox
from tests.waiting import EVENT_S

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def make_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=EVENT_S)


def test_http_and_grpc_give_the_same_text(log: Path) -> None:
    with serve(log, "--simulate") as stack, make_client(stack.http_url()) as client:
        (model,) = client.models.list().data
        ask: dict[str, Any] = {"model": model.id, "prompt": "hello", **GREEDY}
        ask["extra_body"] = {"ignore_eos": True}
        whole = client.completions.create(**ask)
        streamed = [
            chunk.choices[0].text for chunk in client.completions.create(**ask, stream=True)
        ]
        over_grpc = signalbox(
            "generate", "hello", "--max-tokens=12", "--temperature=0", "--ignore-eos", "--json",
            "--router", stack.address,
        )  # fmt: skip
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        text = json.loads(over_grpc.stdout)["outputs"][0]["text"]
        assert whole.choices[0].text == "".join(streamed) == text
        assert stack.stop() == 0


@pytest.mark.model
def test_a_model_answers_over_http(log: Path) -> None:
    with serve(log, MODEL, "--device=cpu") as stack, make_client(stack.http_url()) as client:
        (model,) = client.models.list().data
        question: Any = [{"role": "user", "content": "What is the capital of South Korea?"}]
        answer = client.chat.completions.create(
            model=model.id, messages=question, logprobs=True, **GREEDY
        )
        (choice,) = answer.choices
        assert "Seoul" in (choice.message.content or "")
        assert choice.logprobs is not None
        assert len(choice.logprobs.content or ()) == answer.usage.completion_tokens  # type: ignore[union-attr]
        named: Any = {"return_tokens_as_token_ids": True, "logprob_token_ids": [17, 5]}
        answer = client.chat.completions.create(
            model=model.id, messages=question, logprobs=True, extra_body=named, **GREEDY
        )
        assert answer.choices[0].message.content == choice.message.content
        for one in answer.choices[0].logprobs.content or ():  # type: ignore[union-attr]
            assert [top.token for top in one.top_logprobs] == ["token_id:17", "token_id:5"]
            assert all(top.logprob < one.logprob <= 0 for top in one.top_logprobs)
