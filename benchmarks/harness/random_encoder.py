"""A directory of sentence-transformers with made-up weights, so that nothing is fetched."""

import json
from pathlib import Path
from typing import Any

from signalbox.bench.workload import WORDS

HIDDEN_SIZE = 384
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")


def save_encoder(folder: Path, *, num_layers: int = 6, hidden_size: int = HIDDEN_SIZE) -> Path:
    """Saves a BERT of the shape of all-MiniLM-L6-v2, with a token for each word of a load."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(_SPECIAL) + len(WORDS),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        initializer_range=0.1,
    )
    plain = folder / "transformer"
    BertModel(config).save_pretrained(plain)
    _save_tokenizer(plain)
    parts = [
        modules.Transformer(str(plain)),
        modules.Pooling(hidden_size, pooling_mode="mean"),
        modules.Normalize(),
    ]
    model = SentenceTransformer(modules=parts, device="cpu")
    model.save(str(folder / "encoder"), create_model_card=False)
    _write_as_before(folder / "encoder", hidden_size)
    return folder / "encoder"


def _write_as_before(encoder: Path, hidden_size: int) -> None:
    """Describes modules as sentence-transformers 5 did, and the tokenizer as transformers 4 did:
    every version reads that."""
    tokenizer = json.loads((encoder / "tokenizer_config.json").read_text())
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    modules = json.loads((encoder / "modules.json").read_text())
    for one in modules:
        one["type"] = "sentence_transformers.models." + one["type"].rpartition(".")[2]
    pooling = {"word_embedding_dimension": hidden_size, "pooling_mode_mean_tokens": True}
    for name, content in (
        ("tokenizer_config.json", tokenizer),
        ("modules.json", modules),
        ("sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False}),
        ("1_Pooling/config.json", pooling),
    ):
        (encoder / name).write_text(json.dumps(content))


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {word: token_id for token_id, word in enumerate((*_SPECIAL, *WORDS))}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"])
    )
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=512,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )
    tokenizer.save_pretrained(folder)
