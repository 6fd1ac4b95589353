"""What the files of a pooling model say of its inputs."""

import json
from typing import Any

import pytest

from signalbox_router.prompt.tokenization.pooling_texts import (
    QWEN3_RERANKER,
    PoolingTexts,
    read_pooling_texts,
)


def read(**files: Any) -> PoolingTexts:
    named = {
        f"{name.replace('__', '.')}.json": json.dumps(content).encode()
        for name, content in files.items()
    }
    return read_pooling_texts(named)


def test_a_model_without_the_files_has_no_texts() -> None:
    assert read() == PoolingTexts()


def test_settings_of_sentence_transformers_are_read() -> None:
    texts = read(
        config_sentence_transformers={"prompts": {"q": "Q: "}, "default_prompt_name": "q"},
        sentence_bert_config={"do_lower_case": True},
        pooling_config={"include_prompt": False},
        modules=[{"type": "sentence_transformers.models.Transformer"}],
    )
    assert texts == PoolingTexts(
        prompts={"q": "Q: "}, default_prompt_name="q", do_lower_case=True, include_prompt=False
    )


def test_labels_are_in_the_order_of_their_numbers() -> None:
    assert read(config={"id2label": {"10": "k", "2": "c", "0": "a"}}).labels == ("a", "c", "k")


def test_a_decoder_without_modules_answers_by_qwens_template() -> None:
    decoder = {"architectures": ["Qwen3ForCausalLM"]}
    assert read(config=decoder).template is QWEN3_RERANKER
    scored = read(
        config=decoder,
        modules=[{"type": "sentence_transformers.cross_encoder.modules.LogitScore"}],
        sentence_bert_config={
            "processing_kwargs": {
                "chat_template": {"add_generation_prompt": True, "restore_suffix": False}
            }
        },
    )
    assert scored == PoolingTexts(chat_variables={"add_generation_prompt": True})


@pytest.mark.parametrize("content", [b"[]", b"{"])
def test_a_file_that_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"config|Expecting"):
        read_pooling_texts({"config.json": content})
