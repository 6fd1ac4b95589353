"""Finding a model and reading what it is made of: configuration, weights, tokenizer."""

from gpu_worker.loading.dummy import dummy_placement
from gpu_worker.loading.generation_config import read_generation_config
from gpu_worker.loading.quantization import Quantization, choose_quantization
from gpu_worker.loading.source import ModelSource, open_model
from gpu_worker.loading.weights import load_weights

__all__ = [
    "ModelSource",
    "Quantization",
    "choose_quantization",
    "dummy_placement",
    "load_weights",
    "open_model",
    "read_generation_config",
]
