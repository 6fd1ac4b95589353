"""A model's tokenizer and chat template, made from the files that its worker streams.

It wraps the `tokenizers` package. Whole texts are encoded and decoded in a small thread pool by the
package's batch functions, even a single text: only these release the interpreter's lock, so that
the event loop continues meanwhile. Long texts are left to other processes (`long_texts`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import tokenizers

from signalbox_router.limits.payers import ANYONE, Payer
from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.chat_templates import ChatTemplates
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.chat.provenance import Text, plain
from signalbox_router.prompt.tokenization.control_tokens import ControlTokens
from signalbox_router.prompt.tokenization.kept_tokens import (
    NO_TOKENS,
    KeptTokens,
    Respelled,
    respelled,
)
from signalbox_router.prompt.tokenization.long_texts import Encoded, LongTexts, TextProcess
from signalbox_router.prompt.tokenization.pooling_texts import read_pooling_texts
from signalbox_router.prompt.tokenization.segments import Affixes
from signalbox_router.prompt.tokenization.snapshot_positions import SnapshotPositions
from signalbox_router.prompt.tokenization.tokenizer_settings import TokenizerSettings
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

LONG_TEXT_CHARS = 64 << 10
"""Characters of the longest text that is tokenised in this process, in some 10 ms and 20 MB."""
LONG_DECODE_TOKENS = 64 << 10
"""Most tokens that are decoded in this process."""


class EncodedChat(NamedTuple):
    """The prompt of a conversation."""

    token_ids: list[int]
    opening: str
    """Text at the prompt's end that begins the answer."""
    takes_tools: bool
    """True if its template renders tools, False if they are described in its text."""
    snapshot_positions: tuple[int, ...] = ()
    """Positions from which later requests are likely to go on, if they were asked for."""


class Tokenizer:
    """Converts text to token ids and back."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        *,
        vocab_size: int,
        pool: ThreadPoolExecutor,
        chat_template: str | None = None,
    ) -> None:
        """Makes a tokenizer. Raises ValueError if a file is missing or cannot be read.

        Args:
            files: contents by name; tokenizer.json, and tokenizer_config.json if there is one.
            chat_template: replaces the one in the files.
        """
        if "tokenizer.json" not in files:
            raise ValueError("the worker has sent no tokenizer.json")
        try:
            self._backend: Any = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
            self.settings = TokenizerSettings(
                files.get("tokenizer_config.json", b""), chat_template=chat_template
            )
            self._control_tokens = ControlTokens(files["tokenizer.json"])
            self.pooling_texts = read_pooling_texts(files)
        except Exception as error:  # the package raises plain Exception
            raise ValueError(f"the model's tokenizer files cannot be read: {error}") from error
        # The file may hold the settings of training, which would truncate prompts silently.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.files = files
        self.vocabulary = Vocabulary(self._backend, vocab_size=vocab_size)
        self._templates = ChatTemplates(
            self.settings.chat_template,
            special_tokens=self.settings.special_tokens,
            fault=self.settings.template_fault,
        )
        self._pool = pool
        self._snapshot_positions = SnapshotPositions()
        self._long_texts = LongTexts([files["tokenizer.json"], self._control_tokens.file])

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own template, if it has one."""
        return self.settings.chat_template

    def special_token_id(self, name: str) -> int | None:
        """Returns the id of the token that templates know by this name, such as bos_token, or
        None."""
        token = self.settings.special_tokens.get(name)
        return None if token is None else self.vocabulary.token_id(token)

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

    @cached_property
    def affixes(self) -> Affixes:
        """Special tokens around a text."""
        return Affixes.of_one(self._backend)

    @cached_property
    def pair_affixes(self) -> Affixes:
        """Special tokens around and between a pair of texts."""
        return Affixes.of_pair(self._backend, has_token_types=self.settings.has_token_types)

    async def offsets(
        self, text: str, *, add_special_tokens: bool, last: int | None, payer: Payer = ANYONE
    ) -> list[int]:
        """Returns the places in the text, in characters, where all or the `last` tokens of
        `encode` begin.

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
        return offsets if last is None else offsets[-last:]

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
        kept: KeptTokens = NO_TOKENS,
        names_positions: bool = False,
        payer: Payer = ANYONE,
    ) -> EncodedChat:
        """Renders a conversation and encodes it; raises as `render_chat` and `encode`.

        Args:
            last: number of tokens wanted from the end; None is all.
            kept: tokens of an earlier turn, which all tokens begin with as far as they say the
                same.
            names_positions: whether `snapshot_positions` are wanted; there are none beside `last`.
            payer: shares the processes for templates and long texts fairly with other payers.
        """
        text, facts = await self._templates.render(conversation, max_bytes=max_bytes, payer=payer)

        async def encode(part: Text) -> list[int]:
            # The template writes all special tokens itself, including the first.
            if conversation.parse_special_tokens:
                return await self.encode(
                    plain(part), add_special_tokens=False, last=last, payer=payer
                )
            return await self.encode_written(part, last=last, payer=payer)

        token_ids, positions = await encode(text), tuple[int, ...]()
        if names_positions and last is None:
            positions = await self._snapshot_positions.find(
                conversation, text, num_tokens=len(token_ids), encode=encode
            )
        if kept.token_ids and last is None:
            token_ids, positions = self._respelled(kept, token_ids, positions)
        opening = conversation.opening_of(text)
        return EncodedChat(token_ids, opening, facts.takes_tools, positions)

    def _respelled(
        self, kept: KeptTokens, token_ids: list[int], positions: tuple[int, ...]
    ) -> Respelled:
        if max(kept.token_ids) > self.vocabulary.max_token_id:  # of another model
            return Respelled(token_ids, positions)
        return respelled(
            kept,
            token_ids,
            positions,
            bytes_of=self.vocabulary.token_bytes,
            controls=self._control_tokens.ids,
        )

    async def encode_written(
        self,
        text: Text,
        *,
        field: str = "messages",
        last: int | None = None,
        payer: Payer = ANYONE,
    ) -> list[int]:
        """Returns token ids of a text in which only its template writes control tokens."""
        if len(text) > LONG_TEXT_CHARS:
            return await self._long_texts.run(
                lambda process: self._control_tokens.encode(
                    text, partial(_encode, process, last, field)
                ),
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
        """Returns the prompt; blocks while it is rendered.

        Raises FailedPrecondition if there is no template, and InvalidArgument if it refuses the
        conversation.
        """
        return self._templates.render_blocking(conversation, max_bytes=max_bytes)

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
        """Ends the processes for long texts and for templates."""
        self._long_texts.close()
        self._templates.close()

    async def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[int]]:
        """Returns the same as `Vocabulary.decode_with_offsets`, computed in the pool."""
        decode = partial(self.vocabulary.decode_with_offsets, token_ids)
        decoded: tuple[str, list[int]] = await self._run(decode)
        return decoded

    async def _run(self, call: "partial[Any]") -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


def _encode(
    process: TextProcess, last: int | None, field: str, text: str, places: Iterable[int]
) -> Encoded:
    """Returns the text encoded by the second of a process's tokenizers."""
    return process.encode(
        text, tokenizer=1, add_special_tokens=False, last=last, places=places, field=field
    )
