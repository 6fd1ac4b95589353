"""Special tokens and truncation, compared with those of the tokenizer itself."""

from itertools import product
from typing import Any

import pytest
import tokenizers
from tokenizers import models, processors

from signalbox_router.prompt.tokenization.segments import Affixes
from tests.router.fakes import BOS, EOS, make_backend, token

BERT = processors.BertProcessing((EOS, token(EOS)), (BOS, token(BOS)))
ROBERTA = processors.RobertaProcessing((EOS, token(EOS)), (BOS, token(BOS)))
END_ONLY = processors.TemplateProcessing(
    single=f"$A {EOS}", pair=f"$A $B:1 {EOS}:1", special_tokens=[(EOS, token(EOS))]
)
PROCESSORS = {"bert": BERT, "roberta": ROBERTA, "end only": END_ONLY}


def make_tokenizer(processor: Any) -> Any:
    backend = tokenizers.Tokenizer.from_str(make_backend().to_str())
    backend.post_processor = processor
    return backend


def plain(backend: Any, text: str) -> list[int]:
    backend.no_truncation()
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


def test_vocabulary_without_letters_has_its_special_tokens() -> None:
    vocabulary = {"<s>": 0, "</s>": 1, "東": 2, "京": 3}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.post_processor = processors.BertProcessing(("</s>", 1), ("<s>", 0))
    pair = backend.encode("東", "京")
    assert Affixes.of_one(backend).join([2, 3]).token_ids == backend.encode("東京").ids
    joined = Affixes.of_pair(backend, has_token_types=True).join([2], [3])
    assert joined == (pair.ids, pair.type_ids.index(1))


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_text_is_cut_as_the_tokenizer_cuts_it(name: str) -> None:
    backend = make_tokenizer(PROCESSORS[name])
    affixes = Affixes.of_one(backend)
    for length, most, side in product(range(1, 8), range(3, 10), ("left", "right")):
        text = "z" * length
        joined = affixes.join(plain(backend, text), max_tokens=most, keeps_end=side == "left")
        backend.enable_truncation(most, direction=side)
        assert joined == (backend.encode(text).ids, 0)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_pair_is_cut_as_the_tokenizer_cuts_it(name: str) -> None:
    backend = make_tokenizer(PROCESSORS[name])
    affixes = Affixes.of_pair(backend, has_token_types=True)
    for first, second, most in product(range(1, 8), range(1, 8), range(6, 18)):
        texts = ("z" * first, "q" * second)
        joined = affixes.join(*(plain(backend, text) for text in texts), max_tokens=most)
        backend.enable_truncation(most)
        encoding = backend.encode(*texts)
        num_first = encoding.type_ids.count(0) if any(encoding.type_ids) else 0
        assert joined == (encoding.ids, num_first)


def test_a_model_without_token_types_has_none() -> None:
    affixes = Affixes.of_pair(make_tokenizer(BERT), has_token_types=False)
    assert affixes.join([5], [6]).num_first == 0
