"""Errors of prompts that are too long for the model, or for the tokenizer."""

from signalbox_contract.errors import InvalidArgument


class ContextOverflow(InvalidArgument):
    """The prompt has more tokens than the model's window. Clients look for this text, which is
    OpenAI's and vLLM's, to shorten it."""

    def __init__(
        self,
        field: str,
        value: object,
        allowed: str,
        *,
        window: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """`num_prompt_tokens` are those of a prompt that is itself too long, if they were
        counted."""
        self.window = window
        self.num_prompt_tokens = num_prompt_tokens
        maximum = f"This model's maximum context length is {window} tokens"
        advice = "Please reduce the length of the input prompt or the tokens that you ask for"
        super().__init__(field, value, f"{allowed}. {maximum}. {advice}")


class TextTooLong(InvalidArgument):
    """The text has more bytes than are tokenised."""
