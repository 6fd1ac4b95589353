"""Files with secrets: the key of a shared store, and its password."""

import os
import stat
from pathlib import Path

MIN_KEY_BYTES = 32
_MAX_BYTES = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_OF_ROOT = _OTHERS & ~stat.S_IRGRP
"""Kubernetes mounts a secret as a file of root's that the group of the pod may read."""


class SecretFileError(ValueError):
    """A file cannot be used; the message names the remedy, and nothing of the content."""


def read_key(path: Path) -> bytes:
    """Returns a key of at least 32 bytes. Raises SecretFileError."""
    key = _read(path, "--kv-store-key")
    if len(key) < MIN_KEY_BYTES:
        raise SecretFileError(
            f"--kv-store-key {path} has {len(key)} bytes; it must have at least {MIN_KEY_BYTES}"
            f" random ones: head -c {MIN_KEY_BYTES} /dev/urandom > {path}"
        )
    return key


def read_password(path: Path) -> str:
    """Returns the password, the line of the file. Raises SecretFileError."""
    try:
        password = _read(path, "--kv-store-password").decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SecretFileError(f"--kv-store-password {path} is no UTF-8 text") from None
    if not password:
        raise SecretFileError(f"--kv-store-password {path} is empty; put the password into it")
    return password


def _read(path: Path, flag: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
        try:
            status = os.fstat(fd)
            is_file = stat.S_ISREG(status.st_mode)
            content = os.read(fd, _MAX_BYTES + 1) if is_file else b""
        finally:
            os.close(fd)
    except OSError as error:
        raise SecretFileError(f"{flag} {path} cannot be read: {error.strerror}") from None
    if not is_file:
        raise SecretFileError(f"{flag} {path} is no regular file; give one")
    forbidden = {0: _OTHERS_OF_ROOT, os.geteuid(): _OTHERS}.get(status.st_uid)
    if forbidden is None or status.st_mode & forbidden:
        raise SecretFileError(
            f"{flag} {path} must belong to the user of the worker, and to nobody else; chown it,"
            f" and chmod 600 {path}"
        )
    if len(content) > _MAX_BYTES:
        raise SecretFileError(f"{flag} {path} has more than {_MAX_BYTES} bytes; give another file")
    return content
