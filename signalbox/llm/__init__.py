"""The model in this process, as vLLM's users know it: LLM, LLMEngine, AsyncLLMEngine.

The scheduler's and the worker's own classes, with no gRPC and no message between them; the text
side is the router's.
"""

from signalbox.llm.args import AsyncEngineArgs, EngineArgs
from signalbox.llm.async_engine import AsyncLLM, AsyncLLMEngine
from signalbox.llm.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from signalbox.llm.engine import LLMEngine
from signalbox.llm.errors import EngineDeadError
from signalbox.llm.llm import LLM
from signalbox.llm.model_registry import ModelRegistry
from signalbox.llm.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    Usage,
)
from signalbox.llm.pooling_params import PoolingParams
from signalbox.llm.prompts import PromptType, TextPrompt, TokensPrompt
from signalbox.llm.sampling_params import RequestOutputKind, SamplingParams
from signalbox.llm.structured_outputs import StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EngineArgs",
    "EngineDeadError",
    "LLMEngine",
    "Logprob",
    "ModelRegistry",
    "PoolingParams",
    "PromptType",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "Usage",
]
