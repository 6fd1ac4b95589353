"""The model in this process, with vLLM's classes: LLM, LLMEngine, AsyncLLMEngine.

It uses the classes of the scheduler and the worker without gRPC and messages between them, and the
router's text handling.
"""

from signalbox.llm.async_llm_engine import AsyncLLM, AsyncLLMEngine
from signalbox.llm.engine_args import AsyncEngineArgs, EngineArgs
from signalbox.llm.llm import LLM
from signalbox.llm.llm_engine import LLMEngine
from signalbox.llm.model_registry import ModelRegistry
from signalbox.llm.requests.beam_search import (
    BeamSearchOutput,
    BeamSearchParams,
    BeamSearchSequence,
)
from signalbox.llm.requests.errors import EngineDeadError
from signalbox.llm.requests.lora_request import LoRARequest
from signalbox.llm.requests.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
)
from signalbox.llm.requests.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from signalbox.llm.requests.pooling_params import PoolingParams
from signalbox.llm.requests.prompts import PromptType, TextPrompt, TokensPrompt
from signalbox.llm.requests.sampling_params import RequestOutputKind, SamplingParams
from signalbox.llm.requests.structured_outputs import StructuredOutputsParams
from signalbox_contract.updates import Usage

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineDeadError",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "ModelRegistry",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "Usage",
]
