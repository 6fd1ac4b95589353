"""Reads a model's tokenizer_config.json: special tokens by name, and the chat template."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.template_renderer import TemplateFailed

logger = logging.getLogger(__name__)

_PATHS = {"vocab_file", "merges_file", "tokenizer_file", "name_or_path"}


class TokenizerSettings:
    """The settings of one tokenizer."""

    def __init__(self, content: bytes, *, chat_template: str | None = None) -> None:
        """Reads the file's content; `chat_template` replaces the template in it."""
        self._settings: dict[str, Any] = json.loads(content or b"{}")
        self.special_tokens = _special_tokens(self._settings)
        """bos_token, eos_token and so on, by their names in templates."""
        source = self._settings.get("chat_template") if chat_template is None else chat_template
        self.template_fault = ""
        """The reason why the model's own template cannot be used; empty if it can."""
        self.chat_template = self._load_chat_template(source)
        """The model's own template, if it has one that can be used."""

    @property
    def has_token_types(self) -> bool:
        """False if the model takes no token types, whatever the tokenizer gives the tokens."""
        names = self._settings.get("model_input_names")
        return not isinstance(names, list) or "token_type_ids" in names

    def _load_chat_template(self, source: Any) -> ChatTemplate | None:
        if isinstance(source, list):  # several by name
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not source:
            return None
        try:
            template = ChatTemplate(source, special_tokens=self.special_tokens)
            template.try_out()
        except TemplateFailed as error:
            logger.warning(
                "the model's chat template cannot be used, so Chat is off without the router's"
                " --chat-template: %s",
                error,
            )
            self.template_fault = str(error)
            return None
        return template

    def info(self) -> dict[str, Any]:
        """Returns the settings with special tokens as text.

        The class is PreTrainedTokenizerFast unless the file names one; paths are left out.
        """
        info = {name: value for name, value in self._settings.items() if name not in _PATHS}
        info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
        info |= self.special_tokens
        info.pop("chat_template", None)
        if self.chat_template is not None:
            info["chat_template"] = self.chat_template.source
        return info


def try_chat_template(files: Mapping[str, bytes]) -> None:
    """Warns of a chat template in a tokenizer's files that the router cannot use."""
    with suppress(Exception):  # whatever else is wrong with the files, their reader says it
        settings = TokenizerSettings(files.get("tokenizer_config.json", b""))
        if settings.chat_template is not None:
            settings.chat_template.close()


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    tokens = {name: value for name, value in settings.items() if name.endswith("_token")}
    for named in (
        settings.get("extra_special_tokens"),
        settings.get("model_specific_special_tokens"),
    ):
        tokens |= named if isinstance(named, dict) else {}
    texts = ((name, _token_text(value)) for name, value in tokens.items())
    return {name: text for name, text in texts if isinstance(text, str)}


def _token_text(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value
