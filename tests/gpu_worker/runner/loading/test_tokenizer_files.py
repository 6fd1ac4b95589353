"""Tokens in each file that may hold them: what AutoTokenizer makes of the folder is right."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from signalbox_router.prompt.chat.conversation import Conversation, Message
from signalbox_router.prompt.chat.provenance import plain
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_worker.config import ModelError
from signalbox_worker.runner.loading import transformers_tokenizer
from signalbox_worker.runner.loading.hf_directory import DirectorySource
from tests.router.fakes import POOL

WORDS = ("▁the", "▁cat", "the", "▁a")
"""Also whole tokens of the vocabulary."""
VOCAB = ["<unk>", "<s>", "</s>", "<|user|>", *"▁abcehtu<|>/sr", "th", *WORDS]
"""The last special token is one of the model's, and no added token."""
TEMPLATE = (
    "{{ bos_token }}{{ messages[0].content }}<|call|>{{ eos_token }}{{ image_token }}{{ boi }}"
)
TEXTS = ["the cat", "a<|call|> the </s> a", "<|user|> cat<|end|>the <|image|>\n"]
CONVERSATION = Conversation(messages=[Message("user", "the cat")])
EOS = {"eos_token": "<|end|>"}


def decoder(*tokens: str, **flags: Any) -> dict[str, Any]:
    """Returns the added_tokens_decoder of tokens; those of tokenizer.json are not in it."""
    state = {"special": True, "normalized": False, **flags}
    by_id = {str(40 + i): {"content": token, **state} for i, token in enumerate(tokens)}
    return {"added_tokens_decoder": by_id}


def make_folder(path: Path, files: dict[str, dict[str, Any]]) -> None:
    """Saves a SentencePiece-BPE tokenizer that adds BOS; `files` are saved beside it."""
    ids = {token: index for index, token in enumerate(VOCAB)}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a")]
    tokenizer = Backend(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<|image|>", normalized=True)])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(path / "tokenizer.json"))
    plain_config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    config = plain_config | files.get("tokenizer_config.json", {})
    saved = {"config.json": {"model_type": "llama"}, **files, "tokenizer_config.json": config}
    for name, content in saved.items():
        (path / name).write_text(json.dumps(content))


AGREEING: dict[str, dict[str, dict[str, Any]]] = {
    "all in tokenizer.json": {},
    "special_tokens_map.json": {
        "tokenizer_config.json": {"bos_token": None, "eos_token": None},
        "special_tokens_map.json": {"bos_token": {"content": "<s>"}, "eos_token": "</s>"},
    },
    "map beside added_tokens_decoder": {
        "tokenizer_config.json": {"added_tokens_decoder": {}},
        "special_tokens_map.json": {"bos_token": "</s>", "eos_token": "<s>"},
        "added_tokens.json": {"<|call|>": 40},
    },
    "the same in all": {
        "tokenizer_config.json": {
            "unk_token": {"__type": "AddedToken", "content": "<unk>", "normalized": True},
            "model_specific_special_tokens": {"boi": "<unk>"},
            "additional_special_tokens": ["<s>", {"__type": "AddedToken", "content": "</s>"}],
        },
        "special_tokens_map.json": {"unk_token": {"content": "<unk>", "lstrip": True}},
        "added_tokens.json": {"</s>": 2},
    },
}
DIFFERING: dict[str, dict[str, dict[str, Any]]] = {
    "added_tokens_decoder": {"tokenizer_config.json": decoder("<|call|>", "<|end|>") | EOS},
    "its flags": {"tokenizer_config.json": decoder("</s>", rstrip=True, lstrip=True)},
    "not special": {"tokenizer_config.json": decoder("<|call|>", special=False, normalized=True)},
    "additional_special_tokens": {
        "tokenizer_config.json": {"additional_special_tokens": ["<|call|>", "<|end|>"], **EOS}
    },
    "extra_special_tokens": {
        "tokenizer_config.json": {"extra_special_tokens": ["<|end|>", "<|call|>"]}
    },
    "extra_special_tokens by name": {
        "tokenizer_config.json": {"extra_special_tokens": {"boi": "<|call|>"}}
    },
    "special in one file": {"added_tokens.json": {"<unk>": 40}},
    "a token of its own name": {"tokenizer_config.json": {"image_token": "<|image|>"}},
    "a token of the model": {"tokenizer_config.json": {"eos_token": "<|user|>"}},
    "added_tokens.json": {
        "tokenizer_config.json": EOS,
        "added_tokens.json": {"<|call|>": 40, "<|end|>": 41},
    },
    "special_tokens_map.json": {
        "special_tokens_map.json": {
            "eos_token": {"content": "<|end|>", "lstrip": True},
            "additional_special_tokens": ["<|call|>"],
        }
    },
    "a class that builds its own": {
        "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast", **EOS},
    },
    "both lists": {
        "tokenizer_config.json": {"extra_special_tokens": ["<|call|>"]},
        "special_tokens_map.json": {"extra_special_tokens": ["<|end|>"]},
    },
}
LAYOUTS = [(files, True) for files in AGREEING.values()]
LAYOUTS += [(files, False) for files in DIFFERING.values()]


@pytest.mark.parametrize(("files", "agree"), LAYOUTS, ids=[*AGREEING, *DIFFERING])
def test_ids_ends_text_and_templates_are_autotokenizers(
    files: dict[str, dict[str, Any]],
    agree: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoTokenizer

    make_folder(tmp_path, files)
    source = DirectorySource(tmp_path, name="tiny")
    with monkeypatch.context() as patch:
        if agree:  # then nothing is asked of transformers
            patch.setitem(sys.modules, "transformers", None)
        content = source.tokenizer_files()
    right = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer(content, vocab_size=len(right), pool=POOL)
    of_llm = transformers_tokenizer.load(content)
    for text in TEXTS:
        ids = ours.encode_blocking(text, add_special_tokens=True)
        assert ids == of_llm.encode(text) == right.encode(text)
        for skip in (True, False):
            detokenizer = ours.vocabulary.make_detokenizer((), skip_special_tokens=skip)
            decoded = detokenizer.push(ids) + detokenizer.flush()
            assert decoded == right.decode(ids, skip_special_tokens=skip)
    assert source.eos_token_ids() == (right.eos_token_id,)
    assert of_llm.special_tokens_map == right.special_tokens_map
    rendered = ours.render_chat(CONVERSATION, max_bytes=1000)
    messages = [{"role": "user", "content": "the cat"}]
    assert plain(rendered) == right.apply_chat_template(messages, tokenize=False)
    assert ours.encode_rendered(rendered, CONVERSATION) == right.encode(
        plain(rendered), add_special_tokens=False
    )


def test_newer_file_of_a_tokenizer_is_read(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    names = {"fast_tokenizer_files": ["tokenizer.json", "tokenizer.5.0.0.json"]}
    make_folder(tmp_path, {"tokenizer_config.json": names})
    newer = json.loads((tmp_path / "tokenizer.json").read_bytes()) | {"post_processor": None}
    (tmp_path / "tokenizer.5.0.0.json").write_text(json.dumps(newer))
    content = DirectorySource(tmp_path, name="tiny").tokenizer_files()
    ours = Backend.from_buffer(content["tokenizer.json"])
    assert ours.encode(TEXTS[0]).ids == AutoTokenizer.from_pretrained(tmp_path).encode(TEXTS[0])


def make_wordpiece() -> Backend:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "cat", "caf", "##e", "##é"]
    ids = {word: index for index, word in enumerate(words)}
    tokenizer = Backend(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.BertNormalizer(lowercase=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def make_byte_level() -> Backend:
    ids = {one: index for index, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Backend(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def make_metaspace() -> Backend:
    ids = {token: index for index, token in enumerate(VOCAB)}
    tokenizer = Backend(models.BPE(ids, [("▁", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return tokenizer


@pytest.mark.parametrize(
    ("kind", "make", "field", "value"),
    [
        ("bert", make_wordpiece, "do_lower_case", False),
        ("bert", make_wordpiece, "strip_accents", False),
        ("bert", make_wordpiece, "do_lower_case", True),
        ("gpt2", make_byte_level, "add_prefix_space", True),
        ("qwen2", make_byte_level, "add_prefix_space", True),
        ("llama", make_metaspace, "add_prefix_space", False),
    ],
)
def test_step_that_tokenizer_config_contradicts_is_autotokenizers(
    kind: str, make: Callable[[], Backend], field: str, value: bool, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    make().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({field: value}))
    content = DirectorySource(tmp_path, name="tiny").tokenizer_files()
    ours = Backend.from_buffer(content["tokenizer.json"])
    right = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The café", "a cat", " the"):
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == right.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("flag", [True, False])
def test_flags_that_tokenizer_json_does_not_follow_are_told(
    flag: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_folder(tmp_path, {"tokenizer_config.json": {"add_bos_token": flag, "add_eos_token": flag}})
    with caplog.at_level(logging.WARNING):
        DirectorySource(tmp_path, name="tiny").eos_token_ids()
    (told,) = caplog.messages  # the file adds BOS, and no EOS
    assert told.startswith("add_eos_token is true" if flag else "add_bos_token is false")


@pytest.mark.parametrize("name", ["LlamaTokenizer", "PreTrainedTokenizerFast"])
def test_steps_that_a_class_replaces_are_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_folder(tmp_path, {"tokenizer_config.json": {"tokenizer_class": name, **EOS}})
    with caplog.at_level(logging.WARNING):
        content = DirectorySource(tmp_path, name="tiny").tokenizer_files()
    told = [one for one in caplog.messages if "replaces the pre_tokenizer of tok" in one]
    converted = json.loads(content["tokenizer.json"])["pre_tokenizer"]
    stored = json.loads((tmp_path / "tokenizer.json").read_bytes())["pre_tokenizer"]
    assert bool(told) is (converted != stored) is (name == "LlamaTokenizer")


def test_tokens_outside_tokenizer_json_without_transformers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path, {"added_tokens.json": {"<|call|>": 40}})
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"lacks '<\|call\|>' as .* transformers is not inst"):
        DirectorySource(tmp_path, name="tiny").tokenizer_files()


@pytest.mark.parametrize("files", ["bert", "gpt2", "qwen2"])
def test_tokenizer_of_older_files_is_autotokenizers(files: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "config.json").write_text(json.dumps({"model_type": files}))
    if files == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "c", "##at", "hug", "<"]
        (tmp_path / "vocab.txt").write_text("\n".join(words))
    else:
        letters = [*pre_tokenizers.ByteLevel.alphabet(), "th", "the", "<|endoftext|>"]
        ids = {token: index for index, token in enumerate(sorted(letters))}
        (tmp_path / "vocab.json").write_text(json.dumps(ids))
        (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    config = decoder("<|end|>") | EOS | {"sep_token": "[SEP]", "model_max_length": 77}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    source = DirectorySource(tmp_path, name="tiny")
    content, right = source.tokenizer_files(), AutoTokenizer.from_pretrained(tmp_path)
    ours = Backend.from_buffer(content["tokenizer.json"])
    for text in TEXTS:
        assert ours.encode(text).ids == right.encode(text)
    assert source.eos_token_ids() == (right.eos_token_id,)
    kept = json.loads(content["tokenizer_config.json"])
    assert kept["model_max_length"] == 77
    assert right.special_tokens_map.items() <= kept.items()
