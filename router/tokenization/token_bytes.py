"""The bytes of each token of a byte-level vocabulary.

Byte-level BPE (GPT-2) writes its vocabulary in an alphabet of printable characters, each of which
stands for a byte. So a token has bytes whatever its neighbours are, and detokenising is a look-up.
"""

from collections.abc import Collection, Mapping


class BytePieces:
    """Tables of bytes by token id, with special tokens and without."""

    def __init__(
        self, vocab: Mapping[str, int], *, vocab_size: int, special_ids: Collection[int]
    ) -> None:
        """Ids without a token have no bytes: models pad their vocabularies."""
        self.of_all = [b""] * max(vocab_size, max(vocab.values()) + 1)
        for token, token_id in vocab.items():
            self.of_all[token_id] = _piece(token)
        self._special_ids = frozenset(special_ids)
        self._by_kept: dict[frozenset[int], list[bytes]] = {}
        self.without_special()  # now, so that the first request does not pay for it

    def without_special(self, kept_ids: frozenset[int] = frozenset()) -> list[bytes]:
        """Returns a table in which special tokens have no bytes, except some that are kept."""
        kept_ids &= self._special_ids
        if kept_ids not in self._by_kept:  # one for each tool call format
            left_out = self._special_ids - kept_ids
            pieces = [b"" if i in left_out else piece for i, piece in enumerate(self.of_all)]
            self._by_kept[kept_ids] = pieces
        return self._by_kept[kept_ids]


def _piece(token: str) -> bytes:
    """Returns a token's bytes; one that is not in the byte alphabet stands for itself."""
    try:
        return bytes([_BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte of each of GPT-2's characters: itself if printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | stand_ins


_BYTE_OF_CHAR = _byte_alphabet()
