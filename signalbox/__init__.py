"""The front door: the model in this process (LLM), command line, settings, a local stack, a client.

What is imported from here comes from `signalbox.llm`, at first use: the command line needs none of
it, and no model is loaded before somebody asks for one.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from signalbox.llm import (
        LLM,
        AsyncEngineArgs,
        AsyncLLMEngine,
        BeamSearchOutput,
        BeamSearchParams,
        CompletionOutput,
        EngineArgs,
        EngineDeadError,
        LLMEngine,
        Logprob,
        ModelRegistry,
        PoolingParams,
        PromptType,
        RequestOutput,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
        TextPrompt,
        TokensPrompt,
    )

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineArgs",
    "EngineDeadError",
    "LLMEngine",
    "Logprob",
    "ModelRegistry",
    "PoolingParams",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from signalbox import llm

    return getattr(llm, name)
