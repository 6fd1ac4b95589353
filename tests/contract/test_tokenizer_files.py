"""The files of a tokenizer, in chunks and by hash."""

import hashlib

from signalbox_contract.tokenizer_files import MAX_CHUNK_BYTES, hash_files, split_files


def test_files_are_cut_into_chunks() -> None:
    files = {"a": b"", "b": bytes(MAX_CHUNK_BYTES + 1)}
    chunks = [(name, len(chunk)) for name, chunk in split_files(files)]
    assert chunks == [("a", 0), ("b", MAX_CHUNK_BYTES), ("b", 1)]


def test_files_are_hashed_with_names_and_lengths() -> None:
    by_hand = b"a\0" + (2).to_bytes(8, "little") + b"xy" + b"b\0" + (0).to_bytes(8, "little")
    assert hash_files({"b": b"", "a": b"xy"}) == hashlib.sha256(by_hand).hexdigest()
