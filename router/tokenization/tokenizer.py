"""A model's tokenizer and chat template, made from the files that its worker streams.

It wraps the `tokenizers` package. Whole texts are encoded and decoded in a small thread pool by the
package's batch functions, even a single text: only these release the interpreter's lock, so that
the event loop continues meanwhile. Long texts are left to other processes (`long_texts`).
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import jinja2
import tokenizers
import tokenizers.decoders

from contract.errors import FailedPrecondition
from router.prompt.chat_template import ChatTemplate, ClientTemplates, make_chat_template
from router.prompt.conversation import Conversation
from router.prompt.provenance import Text, plain
from router.tokenization.control_tokens import ControlTokens
from router.tokenization.detokenizer import BytesDetokenizer, Detokenizer, WindowDetokenizer
from router.tokenization.long_texts import Encoded, LongTexts, TextProcess
from router.tokenization.token_bytes import BytePieces
from router.work_limits.payers import ANYONE, Payer

logger = logging.getLogger(__name__)

_PATHS = {"vocab_file", "merges_file", "tokenizer_file", "name_or_path"}
LONG_TEXT_CHARS = 64 << 10
"""Characters of the longest text that is tokenised in this process, in some 10 ms and 20 MB."""
LONG_DECODE_TOKENS = 64 << 10
"""Most tokens that are decoded in this process."""
_NUM_CONTEXT_TOKENS = 4
"""Last tokens of the prompt, which decide the leading space of the text."""


class Tokenizer:
    """Converts text to token ids and back."""

    def __init__(
        self,
        backend: Any,
        *,
        control_tokens: ControlTokens,
        vocab_size: int,
        chat_template: ChatTemplate | None,
        pool: ThreadPoolExecutor,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        files: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """`special_tokens` are those that templates know by name, such as bos_token."""
        self.files = files
        """Contents of the files that it was made from, by name."""
        self._special_tokens = special_tokens
        self._backend = backend
        self._chat_template = chat_template
        self._client_templates = ClientTemplates(special_tokens=special_tokens)
        self._pool = pool
        self._control_tokens = control_tokens
        self._long_texts = LongTexts([files.get("tokenizer.json", b""), control_tokens.file])
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self._special_ids = {token_id for token_id, token in added.items() if token.special}
        self.max_token_id = max(vocab.values())
        self.max_token_bytes = max(len(token.encode()) for token in vocab)
        self._pieces = self._make_pieces(vocab, vocab_size)

    @classmethod
    def from_files(
        cls,
        files: Mapping[str, bytes],
        *,
        vocab_size: int,
        pool: ThreadPoolExecutor,
        chat_template: str | None = None,
    ) -> "Tokenizer":
        """Makes a tokenizer. Raises ValueError if a file is missing or cannot be read.

        Args:
            chat_template: replaces the one in the files.
        """
        if "tokenizer.json" not in files:
            raise ValueError("the worker has sent no tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
            settings = json.loads(files.get("tokenizer_config.json") or b"{}")
            if chat_template is not None:
                settings["chat_template"] = chat_template
            template = _load_chat_template(settings)
            control_tokens = ControlTokens(files["tokenizer.json"])
        except Exception as error:  # the package raises plain Exception
            raise ValueError(f"the model's tokenizer files cannot be read: {error}") from error
        # The file may hold the settings of training, which would truncate prompts silently.
        backend.no_truncation()
        backend.no_padding()
        return cls(
            backend,
            control_tokens=control_tokens,
            vocab_size=vocab_size,
            chat_template=template,
            pool=pool,
            special_tokens=_special_tokens(settings),
            files=files,
        )

    def _make_pieces(self, vocab: Mapping[str, int], vocab_size: int) -> BytePieces | None:
        """Returns the tokens' bytes; None for a decoder that is not byte-level."""
        if not isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel):
            return None
        return BytePieces(vocab, vocab_size=vocab_size, special_ids=self._special_ids)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own template, if it has one."""
        return self._chat_template

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def token_id(self, token: str) -> int | None:
        """Returns the id of the token with this spelling, or None."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def special_token_id(self, name: str) -> int | None:
        """Returns the id of the token that templates know by this name, such as bos_token, or
        None."""
        token = self._special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def info(self) -> dict[str, Any]:
        """Returns the model's tokenizer_config.json, with special tokens as text.

        The class is PreTrainedTokenizerFast unless the file names one; paths are left out.
        """
        settings = json.loads(self.files.get("tokenizer_config.json") or b"{}")
        info = {name: value for name, value in settings.items() if name not in _PATHS}
        info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
        info |= self._special_tokens
        info.pop("chat_template", None)
        if self._chat_template is not None:
            info["chat_template"] = self._chat_template.source
        return info

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        last: int | None = None,
        payer: Payer = ANYONE,
    ) -> list[int]:
        """Returns token ids; special tokens in the text are parsed as such.

        Raises InvalidArgument for a long text that takes too much time or memory. Cancelling stops
        the work on a long text.

        Args:
            last: number of tokens wanted from the end; None is all.
            payer: shares the processes for long texts fairly with other payers.
        """
        if len(text) > LONG_TEXT_CHARS:
            encoded = await self._long_texts.run(
                lambda process: process.encode(
                    text, add_special_tokens=add_special_tokens, last=last
                ),
                num_bytes=len(text.encode()),
                payer=payer,
            )
            return encoded.ids
        encode = partial(self.encode_blocking, text, add_special_tokens=add_special_tokens)
        ids: list[int] = await self._run(encode)
        return ids if last is None else ids[-last:]

    def encode_blocking(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Returns the same as `encode`, on the calling thread."""
        # Gives the ids of `encode_batch` in a third of the time, without offsets.
        encode = self._backend.encode_batch_fast
        ids: list[int] = encode([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    async def offsets(
        self, text: str, *, add_special_tokens: bool, last: int, payer: Payer = ANYONE
    ) -> list[int]:
        """Returns the places in the text, in characters, where the `last` tokens of `encode`
        begin.

        A special token that the text does not contain begins where the token before it does.
        """
        if len(text) > LONG_TEXT_CHARS:
            return await self._long_texts.run(
                lambda process: process.starts(
                    text, add_special_tokens=add_special_tokens, last=last
                ),
                num_bytes=len(text.encode()),
                payer=payer,
            )

        def compute() -> list[int]:
            encode = self._backend.encode_batch
            encoding = encode([text], add_special_tokens=add_special_tokens)[0]
            return list(accumulate((start for start, _ in encoding.offsets), max))

        offsets: list[int] = await self._run(partial(compute))
        return offsets[-last:]

    async def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Returns the same as `encode_words_blocking`, computed in the pool."""
        if not words:
            return ()
        runs: tuple[tuple[int, ...], ...] = await self._run(
            partial(self.encode_words_blocking, words)
        )
        return runs

    def encode_words_blocking(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Returns the tokens of each word alone and after a space, without duplicates."""
        texts = [prefix + word.lstrip() for word in words for prefix in ("", " ")]
        runs = [tuple(self.encode_blocking(text, add_special_tokens=False)) for text in texts]
        return tuple(dict.fromkeys(run for run in runs if run))

    async def encode_chat(
        self,
        conversation: Conversation,
        *,
        max_bytes: int,
        last: int | None = None,
        payer: Payer = ANYONE,
    ) -> list[int]:
        """Renders a conversation and returns its token ids; raises as `render_chat` and
        `encode`.

        Args:
            last: number of tokens wanted from the end; None is all.
            payer: shares the processes for templates and long texts fairly with other payers.
        """
        if conversation.chat_template is not None:
            text = await self._client_templates.render(
                conversation, max_bytes=max_bytes, payer=payer
            )
        else:
            text = await self._run(partial(self.render_chat, conversation, max_bytes=max_bytes))
        # The template writes all special tokens itself, including the first.
        if conversation.parse_special_tokens:
            return await self.encode(plain(text), add_special_tokens=False, last=last, payer=payer)
        if len(text) > LONG_TEXT_CHARS:
            return await self._long_texts.run(
                lambda process: self._control_tokens.encode(text, partial(_encode, process, last)),
                num_bytes=len(plain(text).encode()),
                payer=payer,
            )
        ids: list[int] = await self._run(partial(self._control_tokens.encode, text))
        return ids if last is None else ids[-last:]

    def encode_rendered(self, text: Text, conversation: Conversation) -> list[int]:
        """Returns the token ids of a text from `render_chat`, on the calling thread."""
        if conversation.parse_special_tokens:
            return self.encode_blocking(plain(text), add_special_tokens=False)
        return self._control_tokens.encode(text)

    def render_chat(self, conversation: Conversation, *, max_bytes: int) -> Text:
        """Returns the prompt, rendered on the calling thread.

        A conversation's own template is rendered in this process, so callers must trust it:
        `encode_chat` does not. Raises FailedPrecondition if there is no template, and
        InvalidArgument if it refuses the conversation.
        """
        if conversation.chat_template is not None:
            own = make_chat_template(conversation.chat_template, self._special_tokens)
            return own.render(conversation, max_bytes=max_bytes)
        if self._chat_template is None:
            raise FailedPrecondition(
                "the model has no chat template; use Generate, or give the router a --chat-template"
            )
        return self._chat_template.render(conversation, max_bytes=max_bytes)

    async def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, payer: Payer = ANYONE
    ) -> str:
        """Returns the text of tokens. Raises InvalidArgument if it takes too much time or
        memory.

        Args:
            payer: shares the processes for many tokens fairly with other payers.
        """
        if len(token_ids) > LONG_DECODE_TOKENS:
            return await self._long_texts.run(
                lambda process: process.decode(token_ids, skip_special_tokens=skip_special_tokens),
                num_bytes=len(token_ids),
                payer=payer,
            )
        decode = partial(self._backend.decode_batch, skip_special_tokens=skip_special_tokens)
        return str((await self._run(partial(decode, [token_ids])))[0])

    def close(self) -> None:
        """Ends the processes for long texts."""
        self._long_texts.close()

    async def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[int]]:
        """Returns the text, including special tokens, and the place in it where each token
        begins."""

        def decode() -> tuple[str, list[int]]:
            detokenizer = self.make_detokenizer((), skip_special_tokens=False)
            text, offsets = "", []
            for token_id in token_ids:
                offsets.append(len(text))
                text += detokenizer.push((token_id,))
            return text + detokenizer.flush(), offsets

        decoded: tuple[str, list[int]] = await self._run(partial(decode))
        return decoded

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one token, which may be an incomplete character."""
        if self._pieces is not None:
            return self._pieces.of_all[token_id]
        return str(self._backend.decode([token_id], skip_special_tokens=False)).encode()

    def vocabulary_entry(self, token_id: int) -> str:
        """Returns a token as the vocabulary spells it, such as "Ġthe"; "" for an unused id."""
        return self._backend.id_to_token(token_id) or ""

    def token_text(self, token_id: int) -> str:
        """Returns the text of one token; replacement characters for an incomplete character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def make_detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        kept_token_ids: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """Returns a detokenizer for a sequence that continues the prompt.

        Args:
            kept_token_ids: special tokens that are not skipped.
        """
        if self._pieces is None:
            decode = self._make_decode(skip_special_tokens, kept_token_ids)
            return WindowDetokenizer(decode, context=prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
        if not skip_special_tokens:
            return BytesDetokenizer(self._pieces.of_all)
        return BytesDetokenizer(self._pieces.without_special(kept_token_ids))

    def _make_decode(
        self, skip_special_tokens: bool, kept_token_ids: frozenset[int]
    ) -> Callable[[list[int]], str]:
        decode = partial(self._backend.decode, skip_special_tokens=skip_special_tokens)
        if not (skip_special_tokens and kept_token_ids & self._special_ids):
            return decode
        skipped = self._special_ids - kept_token_ids
        return lambda token_ids: str(
            self._backend.decode(
                [token_id for token_id in token_ids if token_id not in skipped],
                skip_special_tokens=False,
            )
        )

    async def _run(self, call: "partial[Any]") -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


def _encode(process: TextProcess, last: int | None, text: str, places: Iterable[int]) -> Encoded:
    """Returns the text encoded by the second of a process's tokenizers."""
    return process.encode(
        text, tokenizer=1, add_special_tokens=False, last=last, places=places, field="messages"
    )


def _load_chat_template(settings: Mapping[str, Any]) -> ChatTemplate | None:
    source = settings.get("chat_template")
    if isinstance(source, list):  # several by name
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not source:
        return None
    try:
        return ChatTemplate(source, special_tokens=_special_tokens(settings))
    except jinja2.TemplateSyntaxError as error:
        logger.warning("the model's chat template is not valid, so Chat is off: %s", error)
        return None


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns bos_token, eos_token and so on, by their names in templates."""
    tokens = {}
    for name, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens
