"""Tokenizers that are built of a GGUF file's fields, against transformers' and llama.cpp's."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import regex
from tokenizers import Tokenizer, pre_tokenizers

from signalbox_router.prompt.tokenization.tokenizer import Tokenizer as RouterTokenizer
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.tokenizer import TABLE, GGUFVocab, adds_bos, build
from signalbox_worker.runner.loading.gguf_model import GGUFSource
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.runner.loading.gguf_files import make_gguf, open_path, writing
from tests.gpu_worker.tiny_models import make_model
from tests.router.fakes import POOL


def tokenizer_of(vocab: GGUFVocab) -> Tokenizer:
    return Tokenizer.from_str(build(vocab))


def make_vocab(**fields: Any) -> GGUFVocab:
    alphabet = ["a", "b", "ab", "Ġ", "1", "2", "<s>", "</s>", "<tool>"]
    defaults: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": alphabet,
        "token_types": [1] * 6 + [3, 3, 4],
        "merges": ["a b"],
        "bos": "<s>",
        "eos": "</s>",
        "add_bos": False,
        "add_eos": False,
    }
    return GGUFVocab(**(defaults | fields))


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "gpt-2", "default"])
def test_byte_level_tokenizers_are_built(pre: str) -> None:
    tokenizer = tokenizer_of(make_vocab(pre=pre))
    encoding = tokenizer.encode("ab 12<tool></s>")
    assert encoding.tokens == ["ab", "Ġ", "1", "2", "<tool>", "</s>"]
    assert tokenizer.decode(encoding.ids) == "ab 12<tool>"
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == "ab 12<tool></s>"


def test_built_tokenizer_adds_the_tokens_that_it_is_told_to() -> None:
    tokenizer = tokenizer_of(make_vocab(add_bos=True, add_eos=True))
    assert tokenizer.encode("ab").tokens == ["<s>", "ab", "</s>"]
    assert tokenizer.encode("ab", add_special_tokens=False).tokens == ["ab"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pre": "unheard-of"}, "called 'unheard-of', which is not supported; use a"),
        ({"model": "t5"}, "tokenizers of kind 't5' are not supported"),
        ({"model": "bert"}, "lacks its special tokens"),
        ({"model": "llama"}, "tokenizer has no scores"),
        ({"merges": ["x y"]}, r"the tokenizer is damaged \(.*\); fetch the file again"),
    ],
)
def test_tokenizer_that_is_not_known_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(make_vocab(**fields))


SPLIT_TEXTS = [
    "It's 12345 o'clock, I'LL go  now\n\n  x=1;\tHelloWorld HTTPServer",
    "naïve Ünïcödé 東京タワー 한국어 мир \u0301e 🚂🚃 ...!?\r\n end ",
    "if (a_b[3] != 'don't') { return 3.14; } // ok/",
]


AWKWARD_TEXTS = [
    "'ſ I've 'TWAS we'Ve  \t\v\u3000x\u00a0y\u2028z\r\r\n\n \n",
    "1234567 ٣٤٥٦ ½ⅷ² 一二三漢字かなカナーｱ 한국어ㄱㄴ ㄅㄆ ไทยລາວខ្មែរ",
    "ǅž ʼn ªº ʰx Å Å e\u0301\u0323 \u0301\u0301 ИйÀé µΩK ꭰꮿ 𐐀𐐨𞤀 ﬀﬁ ＡＢａ！，。",
    "...a!!b/c\\d#e$f+g<=>h^i~j|k`l @[m] {n} _o_ «p» „q“ …—：；、〿︰ 👩‍👩‍👧 (s|t,u) 1,000.5",
    "x  1  2   <sentinel:12>IMGIMGABZ  ÷ 12 34567890123 a1b22c333d4444",
    "",
    "   ",
]


def cut_by(splits: list[str], text: str) -> list[str]:
    """Cuts what each expression finds from what it does not, with another engine."""
    parts = [text]
    for split in splits:
        expression, cut = regex.compile(split, regex.VERSION1), []
        for part in parts:
            ends = {0, len(part)} | {end for one in expression.finditer(part) for end in one.span()}
            borders = sorted(ends)
            cut += [part[a:b] for a, b in itertools.pairwise(borders)]
        parts = cut
    return parts


@pytest.mark.parametrize("way", json.loads(TABLE.read_text()), ids=lambda way: way["names"][0])
def test_words_are_cut_by_the_expressions_of_their_name(way: dict[str, Any]) -> None:
    cuts = [tokenizer_of(make_vocab(pre=pre)).pre_tokenizer for pre in way["names"]]
    for text in [*SPLIT_TEXTS, *AWKWARD_TEXTS]:
        words = cuts[0].pre_tokenize_str(text)
        assert [text[first:last] for _, (first, last) in words] == cut_by(way["splits"], text)
        assert all(one.pre_tokenize_str(text) == words for one in cuts)


@pytest.mark.parametrize(
    "pre", ["llama-bpe", "dbrx", "tekken", "qwen2", "megrez", "gpt-4o", "minimax-m2", "gpt-2"]
)
def test_words_are_cut_as_transformers_cuts_them(pre: str) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    alphabet = [*pre_tokenizers.ByteLevel.alphabet()]
    vocab = make_vocab(
        pre=pre, tokens=alphabet, token_types=[1] * len(alphabet), merges=[], bos=None, eos=None
    )
    ours = tokenizer_of(vocab).pre_tokenizer
    theirs, _ = convert_gguf_tokenizer(
        "any",
        {
            "tokenizer_type": "gpt2",
            "pre_tokenizer_type": pre,
            "tokens": alphabet,
            "merges": [],
            "token_type": [1] * len(alphabet),
        },
    )
    for text in SPLIT_TEXTS:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenizer.pre_tokenize_str(text)


def test_texts_of_qwen35_are_read_as_its_class_reads_them() -> None:
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    alphabet = [*pre_tokenizers.ByteLevel.alphabet()]
    types = [1] * len(alphabet)
    ours = tokenizer_of(
        make_vocab(pre="qwen35", tokens=alphabet, token_types=types, merges=[], bos=None, eos=None)
    )
    ids = {token: index for index, token in enumerate(alphabet)}
    theirs: Any = Qwen3_5Tokenizer(vocab=ids, merges=[]).backend_tokenizer
    for text in [*SPLIT_TEXTS, *AWKWARD_TEXTS]:
        assert ours.encode(text).ids == theirs.encode(text).ids
        cut = (one.pre_tokenizer.pre_tokenize_str(text) for one in (ours, theirs))
        assert next(cut) == next(cut)


# The pattern of its own tokenizer, in which && takes Han out of letters.
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(("pre", "pattern"), [("kimi-k2", KIMI), ("glm5", None)])
def test_words_are_cut_as_the_model_s_own_tokenizer_cuts_them(
    pre: str, pattern: str | None
) -> None:
    cut = tokenizer_of(make_vocab(pre=pre)).pre_tokenizer
    for text in [*SPLIT_TEXTS, "ab東京cd 東京IT's (/) \n// 漢字1234"]:
        parts = [text[first:last] for _, (first, last) in cut.pre_tokenize_str(text)]
        if pattern is None:
            others = tokenizer_of(make_vocab(pre="llama-bpe")).pre_tokenizer
            expected = [text[a:b] for _, (a, b) in others.pre_tokenize_str(text)]
        else:
            expected = regex.findall(pattern, text, flags=regex.VERSION1)
        assert parts == expected


def test_words_of_glm_stay_whole_if_they_are_tokens() -> None:
    vocab = make_vocab(pre="glm5", tokens=["a", "b", "ab"], token_types=[1] * 3, merges=[])
    whole = dataclasses.replace(vocab, bos=None, eos=None)
    assert tokenizer_of(whole).encode("ab").tokens == ["ab"]


def test_tokenizer_of_gemma4_is_that_of_transformers() -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokens = [*control, "a", "b", "▁", "ab", "▁a", "▁ab", "\n", "\n\n", "<|channel>"]
    tokens += [f"<0x{one:02X}>" for one in range(256)]
    types = [3] * 5 + [1] * 8 + [4] + [6] * 256
    merges = ["a b", "▁ a", "▁ ab", "\n \n"]
    vocab = make_vocab(
        model="gemma4",
        pre="",
        tokens=tokens,
        token_types=types,
        merges=merges,
        bos="<bos>",
        eos="<eos>",
        unk="<unk>",
        add_space_prefix=False,
    )
    fields = {"tokenizer_type": "gemma4", "tokens": tokens, "merges": merges, "token_type": types}
    theirs, _ = convert_gguf_tokenizer("gemma4", fields)
    ours = tokenizer_of(vocab)
    for text in ("ab ab  b", "a\n\nab<|channel> b", "ab é <eos>ab", " ab"):
        assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ours.encode(text).ids) == theirs.decode(ours.encode(text).ids)
    assert adds_bos(model="gemma4", pre="")


def test_digits_of_deepseek_are_cut_by_three_and_han_runs_apart() -> None:
    cut = tokenizer_of(make_vocab(pre="deepseek-v3")).pre_tokenizer
    words = [word for word, _ in cut.pre_tokenize_str("ab 12345 x!")]
    assert words == ["ab", "Ġ", "123", "45", "Ġx", "!"]


MERGES = ["1 2", "12 3", "4 5", "123 45", "Ġ 1", "Ġ $", "$ 1", ". .", ".. .", "a +", "+ b"]
# The tokens that llama.cpp's `llama-tokenize` (build 11434) makes with these merges of a file
# without tokenizer.ggml.pre.
UNNAMED_CUTS = {
    "cost $12345 12": ["c", "o", "s", "t", "Ġ", "$", "123", "45", "Ġ", "12"],
    "a+b... 123": ["a", "+", "b", "...", "Ġ", "123"],
    "(12)  $1 !": ["(", "12", ")", "Ġ", "Ġ", "$", "1", "Ġ", "!"],
}


def test_file_that_names_no_way_to_cut_words_is_cut_as_by_llama_cpp_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    path = tmp_path / "x.gguf"
    for pre in (None, "gpt-2"):
        make_gguf(path, reference, "qwen3", merges=MERGES, pre=pre)
        files = open_path(path).tokenizer_files()
        tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
        cuts = {text: tokenizer.encode(text).tokens for text in UNNAMED_CUTS}
        assert (cuts == UNNAMED_CUTS) is (pre is None)
    warnings = [record.getMessage() for record in caplog.records]
    assert [text for text in warnings if "how its tokenizer cuts words" in text] == warnings[:1]
    make_gguf(path, reference, "qwen3", merges=MERGES, pre="no-such-way")
    with pytest.raises(ModelError, match=r"x\.gguf: the tokenizer cuts words in a way called"):
        make_runner(path).tokenizer_files()


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", ["<s>", "ab"]), ("qwen2", ["ab"])])
def test_file_that_says_nothing_of_a_first_token_means_what_its_kind_means(
    pre: str, expected: list[str]
) -> None:
    added = adds_bos(model="gpt2", pre=pre)
    tokenizer = tokenizer_of(make_vocab(pre=pre, add_bos=added))
    assert tokenizer.encode("ab").tokens == expected


def make_sentencepiece(*, with_prefix: bool = True) -> GGUFVocab:
    """A vocabulary as sentencepiece trains it: bytes, letters, and pieces that score by rank."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁t", "he", "▁the", "in", "er", "▁a", "nd", "▁and", "▁▁", "▁▁▁▁", "the", "ing"]
    letters = list("▁etaoinshrdlucmfwypvbgkqjxzABCTI.,'0123456789")
    tokens = [*special, *byte_tokens, *pieces, *letters, "<tool>"]
    return GGUFVocab(
        model="llama",
        pre="default",
        tokens=tokens,
        token_types=[2, 3, 3] + [6] * 256 + [1] * (len(pieces) + len(letters)) + [4],
        scores=[0.0] * 259 + [-float(i) for i in range(len(pieces) + len(letters))] + [0.0],
        merges=[],
        bos="<s>",
        eos="</s>",
        unk="<unk>",
        add_bos=adds_bos(model="llama", pre="default"),
        add_eos=False,
        add_space_prefix=with_prefix,
    )


@pytest.mark.parametrize("with_prefix", [True, False])
def test_sentencepiece_tokens_equal_transformers(with_prefix: bool) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    vocab = make_sentencepiece(with_prefix=with_prefix)
    ours = tokenizer_of(vocab)
    theirs, _ = convert_gguf_tokenizer(
        "phi3" if with_prefix else "gemma",  # whose tokenizer.json is built as Llama 2's
        {
            "tokenizer_type": "llama",
            "tokens": vocab.tokens,
            "scores": vocab.scores,
            "token_type": vocab.token_types,
        }
        | ({} if with_prefix else {"merges": [" ".join(m) for m in merges_of(ours)]}),
    )
    for text in [
        "the thing and  the    other",
        "  Then a tithe, banding",
        "日本 émoji 🚂\n\ttab",
        "<tool>the</s> and",
        "",
    ]:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.encode(text).ids == [1, *ids]


# As `llama-tokenize -m X.gguf --stdin --ids --no-bos` of llama.cpp (build 11434) prints them for a
# file of `make_sentencepiece`'s vocabulary: with add_space_prefix, and without it.
SENTENCEPIECE_IDS: list[tuple[str, list[int], list[int]]] = [
    (
        "<s>[INST] the thing</s> and",
        [1, 271, 94, 302, 81, 86, 301, 96, 261, 259, 279, 270, 2, 271, 266],
        [1, 94, 302, 81, 86, 301, 96, 261, 259, 279, 270, 2, 266],
    ),
    (" the", [271, 261], [261]),
    ("  the", [267, 261], [271, 261]),
    ("</s>the", [2, 261], [2, 269]),
    ("<s>  the", [1, 267, 261], [1, 271, 261]),
    (" ", [267], [271]),
    (
        "<tool> the<tool>the <unk>er",
        [316, 271, 261, 316, 261, 271, 0, 271, 263],
        [316, 261, 316, 269, 271, 0, 263],
    ),
    ("\n the", [271, 13, 261], [13, 261]),
    ("▁the", [271, 261], [261]),
]


@pytest.mark.parametrize(("text", "prefixed", "plain"), SENTENCEPIECE_IDS)
def test_sentencepiece_tokens_equal_llama_cpp(
    text: str, prefixed: list[int], plain: list[int]
) -> None:
    for with_prefix, expected in ((True, prefixed), (False, plain)):
        tokenizer = tokenizer_of(make_sentencepiece(with_prefix=with_prefix))
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected


def test_special_tokens_of_phi3_take_the_space_behind_them() -> None:
    vocab = make_sentencepiece()
    for strips, expected in ((True, ["</s>", "▁the"]), (False, ["</s>", "▁", "▁the"])):
        vocab = dataclasses.replace(vocab, strips_after_special=strips)
        tokenizer = tokenizer_of(vocab)
        for text, tokens in (("</s> the", expected), ("<s> the", ["<s>", "▁", "▁the"])):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert [vocab.tokens[token_id] for token_id in ids] == tokens


def merges_of(tokenizer: Tokenizer) -> list[list[str]]:
    merges: list[list[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return merges


def test_sentencepiece_text_comes_back_whole() -> None:
    tokenizer = tokenizer_of(make_sentencepiece())
    for text in ["the thing and  the    other", "日本 émoji 🚂", "A 12"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_tokens_of_one_text_are_decoded_by_their_ids(model: str, tmp_path: Path) -> None:
    """llama.cpp decodes each, and encodes text as the last or as a special one."""
    space = "Ġ" if model == "gpt2" else "▁"
    special = ["<unk>", "<s>", "<|im_end|>", "<|im_end|>", "<s>"]
    pieces = ["a", f"{space}a", "b", space, f"{space}a", "b", "<|im_end|>"]
    with writing(tmp_path / "x.gguf", "llama") as writer:
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*special, *pieces])
        writer.add_token_types([2, 3, 3, 3, 3] + [1] * len(pieces))
        writer.add_token_scores([0.0] * 5 + [-float(i) for i in range(len(pieces))])
        writer.add_token_merges([f"{space} a"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(3)
        writer.add_add_bos_token(True)
    source = GGUFSource(tmp_path / "x.gguf")
    assert source.eos_token_ids() == (2, 3)
    tokenizer = RouterTokenizer(source.tokenizer_files(), vocab_size=12, pool=POOL)
    detokenizer = tokenizer.vocabulary.make_detokenizer([5], skip_special_tokens=True)
    assert detokenizer.push(list(range(12))) + detokenizer.flush() == "a ab  ab<|im_end|>"
    texts = [tokenizer.vocabulary.token_text(one) for one in range(12)]
    assert texts == [*special, "a", " a", "b", " ", " a", "b", "<|im_end|>"]
    bos, end, *_, b = tokenizer.encode_blocking("<|im_end|>b", add_special_tokens=True)
    assert (bos, end, b) == (1, 3, 10)
    assert tokenizer.special_token_id("eos_token") == 3
