"""At the path where vLLM has it; see docs/reference/vllm_python.md."""

from signalbox.llm import PromptType, TextPrompt, TokensPrompt

__all__ = ["PromptType", "TextPrompt", "TokensPrompt"]
