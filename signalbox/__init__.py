"""The public package: Python API (LLM), command line, settings, a local stack, a client.

Names are imported from `signalbox.llm` at first use: the command line needs none of them, and a
program that does not generate loads no model code.
"""

from typing import TYPE_CHECKING, Any

from signalbox.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from signalbox.llm import (
        LLM,
        AsyncEngineArgs,
        AsyncLLMEngine,
        BeamSearchOutput,
        BeamSearchParams,
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        EngineArgs,
        EngineDeadError,
        LLMEngine,
        Logprob,
        ModelRegistry,
        PoolingOutput,
        PoolingParams,
        PoolingRequestOutput,
        PromptType,
        RequestOutput,
        RequestOutputKind,
        SamplingParams,
        ScoringOutput,
        ScoringRequestOutput,
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
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineDeadError",
    "LLMEngine",
    "Logprob",
    "ModelRegistry",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from signalbox import llm

    return getattr(llm, name)
