"""Tiny models that pool, and what sentence-transformers computes with them."""

import json
from pathlib import Path

from tests.gpu_worker.models.pooling.encoder_models import make_texts, save_model


def save_pooled_models(folder: Path) -> tuple[Path, Path, Path]:
    """Saves an encoder, a reranker and a JSON file of texts with their vectors and scores."""
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    save_model(folder / "bert", "bert")
    parts = [
        modules.Transformer(str(folder / "bert")),
        modules.Pooling(48, pooling_mode="mean"),
        modules.Normalize(),
    ]
    encoder = SentenceTransformer(modules=parts, device="cpu")
    encoder.save(str(folder / "encoder"), create_model_card=False)
    classifier = "AutoModelForSequenceClassification"
    save_model(folder / "reranker", "bert", classifier, num_labels=1)
    reranker = CrossEncoder(str(folder / "reranker"), device="cpu")
    query, *texts = make_texts(5, 3, 12, 40, 7, 25)
    expected = {
        "texts": texts,
        "vectors": encoder.encode(texts).tolist(),
        "query": query,
        "scores": reranker.predict([(query, text) for text in texts]).tolist(),
    }
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    return folder / "encoder", folder / "reranker", folder / "expected.json"
