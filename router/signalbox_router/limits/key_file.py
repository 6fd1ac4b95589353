"""Reads the file of API keys; also a process, so that a changed file costs the router no time.

Parsing YAML takes 20 us a key and holds Python's global lock. So `main`, in a short-lived process
with limits that the kernel enforces (`signalbox_rpc.lifetime.limited_program`), reads the file
under the lock that `signalbox keys` holds, and writes a table that is used as it is: digests in
order, and one JSON text for each.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import time
from array import array
from contextlib import suppress
from difflib import get_close_matches
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any

import yaml

MAX_FILE_BYTES = 64 << 20
CPU_LIMIT_S = 30
MEMORY_LIMIT_BYTES = 1 << 30
MAX_DEPTH = 32
"""Collections within each other; libyaml's stack ends the process where there are too many."""
MAX_MESSAGE_CHARS = 1000
"""Characters of a message about a key file, whose names may be long."""
MAX_MERGED = 1 << 20
"""Fields of all mappings of a key file, plus one for each of its characters. A field that a
merge (`<<`) copies from a mapping counts again, because merges of merges multiply."""
SETTLED_S = 0.02
"""Age of a change from which no further one can have the same time; clocks of files tick."""
LOCK_S = 10.0
"""Seconds that a reader waits for the lock, which `signalbox keys` holds for moments."""
_CHUNK_KEYS = 500
"""Keys that are parsed at a time: YAML takes 5 KB and more for each until it is done."""

_SUFFIXES = (".yaml", ".yml")
_FIELDS = {
    "name", "sha256", "tenant", "models", "operator", "max_concurrent_requests",
    "tokens_per_minute",
}  # fmt: skip
DIGEST_BYTES = hashlib.sha256().digest_size

Entry = dict[str, Any]
"""Checked fields of a key; `sha256` is the digest."""
State = tuple[int, int, int]
"""Time of the last change, inode and size of a file, by which a change is noticed. The time is the
status's (ctime): it also tells that a file may be read again, and no program sets it back."""


class KeyFileError(ValueError):
    """The file of keys cannot be used; the message gives the place and the reason in one line.

    It repeats names and numbers of the file alone: a text in it may be a key.
    """

    def __init__(self, message: str, state: State | None = None) -> None:
        """Takes the state of the file that was read, if it could be."""
        self.state = state
        super().__init__(message)


def read_file(path: Path) -> tuple[str, State]:
    """Returns the text of a key file, and which state of the file it is of. Raises KeyFileError."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("it is no regular file")
            _wait_for_lock(file)
            data, state = _read_settled(file)
        return data.decode(), state
    except FileNotFoundError:
        # A text that is not a file name may be a key, which no message repeats.
        name = f" {path}" if path.suffix in _SUFFIXES else ""
        raise KeyFileError(
            f"cannot read api_keys{name}: there is no such file; api_key takes a key itself"
        ) from None
    except UnicodeDecodeError as error:
        raise KeyFileError(
            f"cannot read api_keys {path}: byte {error.start} is not UTF-8"
        ) from None
    except OSError as error:
        raise KeyFileError(f"cannot read api_keys {path}: {error.strerror or error}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Opens a pipe, too, without waiting for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _wait_for_lock(file: IO[bytes]) -> None:
    """Waits for the lock for a while; it is released when the file is closed."""
    until = time.monotonic() + LOCK_S
    while time.monotonic() < until:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(SETTLED_S)
            continue
        except OSError:  # a file system without locks
            pass
        return


def _read_settled(file: IO[bytes]) -> tuple[bytes, State]:
    """Reads the file again while one that takes no lock writes it."""
    until = time.monotonic() + LOCK_S
    while True:
        before = os.fstat(file.fileno())
        if before.st_size > MAX_FILE_BYTES:
            raise OSError(f"it has more than {MAX_FILE_BYTES >> 20} MiB")
        file.seek(0)
        data, state = file.read(MAX_FILE_BYTES), state_of(before)
        is_settled = abs(time.time() - before.st_ctime) > SETTLED_S
        if (is_settled and state_of(os.fstat(file.fileno())) == state) or time.monotonic() > until:
            return data, state
        time.sleep(SETTLED_S)


def state_of(found: os.stat_result) -> State:
    """Returns what tells a file from the one before it."""
    return found.st_ctime_ns, found.st_ino, found.st_size


def parse(text: str, place: str) -> list[Entry]:
    """Returns the keys of a YAML list, in order. Raises KeyFileError that names the place."""
    try:
        entries = _entries(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise KeyFileError(f"cannot read {place}: {_reason(error)}") from None
    except ValueError as error:
        raise KeyFileError(f"{place}: {_cut(str(error))}") from None
    for field in ("name", "sha256"):
        if len({entry[field] for entry in entries}) < len(entries):
            raise KeyFileError(f"{place}: two keys have the same {field}")
    return entries


def is_unwritten(text: str) -> bool:
    """Says whether the text has no YAML document, as of a file that is about to be written.

    `[]` is a document without keys, and so is the line `---`.
    """
    lines = (line.strip() for line in text.splitlines())
    return all(not line or line.startswith("#") for line in lines)


def item_starts(text: str) -> list[int]:
    """Returns where the items of a list begin that has each on lines of its own; else nothing."""
    if (first := re.search(r"^( *)-[ \n]", text, re.MULTILINE)) is None:
        return []
    if not is_unwritten(re.sub(r"^---[ \t]*$", "", text[: first.start()], flags=re.MULTILINE)):
        return []
    return [item.start() for item in re.finditer(rf"^{first[1]}-[ \n]", text, re.MULTILINE)]


def _entries(text: str) -> list[Entry]:
    """Returns the keys of the list, which is parsed in parts unless the parts need each other."""
    starts = [0, *item_starts(text)[_CHUNK_KEYS::_CHUNK_KEYS], len(text)]
    if len(starts) > 2:
        parts = (text[start:end] for start, end in pairwise(starts))
        with suppress(yaml.YAMLError):  # such as an alias of another part's anchor
            return [_entry(item) for part in parts for item in _list(part)]
    return [_entry(item) for item in _list(text)]


def _list(text: str) -> list[Any]:
    try:
        items = yaml.load(text, _Loader) or []
    except ValueError:  # of the date 2026-13-45; its own words may repeat the value
        raise ValueError("a date or a number of it does not exist") from None
    if not isinstance(items, list):
        raise ValueError("expected a list of keys; see `signalbox keys create`")
    return items


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loads as `yaml.safe_load`, with bounds on depth and on the fields that merges create."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_left = MAX_MERGED + len(text)
        self._depth = 0

    def descend_resolver(self, parent: yaml.Node | None, index: Any) -> None:
        """Counts the depth; called before each node is composed."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, "it is nested too deeply")

    def ascend_resolver(self) -> None:
        """Counts the depth; called after each node."""
        self._depth -= 1

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Counts the fields of a mapping; called before merged mappings are copied."""
        super().flatten_mapping(node)
        self._num_left -= len(node.value)
        if self._num_left < 0:
            raise yaml.constructor.ConstructorError(
                None, None, "merges (`<<`) make too many fields of it", node.start_mark
            )


def _entry(item: Any) -> Entry:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ValueError("each key is a mapping with a name")
    name = item["name"]
    if unknown := item.keys() - _FIELDS:
        near = get_close_matches(min(map(str, unknown))[:40], _FIELDS, n=1)
        meant = f"; is it {near[0]}?" if near else ""  # the field itself may be a key
        raise ValueError(f"{name} has an unknown field{meant}")
    tenant, models = item.get("tenant", name), item.get("models")
    operator = item.get("operator", False)
    if not isinstance(operator, bool):
        raise ValueError(f"operator of {name} is {_shown(operator)}; it must be true or false")
    if not isinstance(tenant, str):
        raise ValueError(f"the tenant of {name} is {_shown(tenant)}; it must be text")
    if models is not None and not isinstance(models, list):
        raise ValueError(f"the models of {name} must be a list")
    if any(isinstance(model, list | dict | set) for model in models or ()):  # aliases nest for ever
        raise ValueError(f"the models of {name} must be a list of names")
    return {
        "name": name,
        "sha256": _digest(name, item.get("sha256")),
        "tenant": tenant,
        "models": None if models is None else [str(model) for model in models],
        "max_concurrent_requests": _positive(name, item, "max_concurrent_requests"),
        "tokens_per_minute": _positive(name, item, "tokens_per_minute"),
        "operator": operator,
    }


def _digest(name: str, text: Any) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except (TypeError, ValueError):
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"the sha256 of {name} must be 64 hexadecimal digits, in quotes")
    return digest


def _positive(name: str, item: dict[str, Any], field: str) -> int | None:
    value = item.get(field)
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{field} of {name} is {_shown(value)}; it must be at least 1")
    return value


def _shown(value: Any) -> str:
    """Returns a number for a message; of all else the type, because a text may be a key."""
    if isinstance(value, int | float) and abs(value) < 2**63:
        return repr(value)
    return f"a {type(value).__name__}"


def _reason(error: Exception) -> str:
    """Returns why YAML cannot be read, without the lines that PyYAML shows of it."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return "it is nested too deeply" if isinstance(error, RecursionError) else "it is no text"
    mark = error.problem_mark
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    problem, *_ = (error.problem or "").split(" '!")  # a tag, which may be a key
    return _cut(f"{problem}{where}")


def _cut(message: str) -> str:
    """Returns a message in one line, cut, because the key file may have made it long."""
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    return " ".join(message.split())


def pack(entries: list[Entry]) -> bytes:
    """Returns a table of the keys: the digests in order, where each text ends, and the texts."""
    ordered = sorted(entries, key=lambda entry: entry["sha256"])
    digests = b"".join(entry.pop("sha256") for entry in ordered)
    texts = [json.dumps(entry).encode() for entry in ordered]
    ends = array("Q", accumulate(map(len, texts), initial=0))
    return b"".join([digests, ends.tobytes(), *texts])


def _answer(path: str) -> bytes:
    """Returns a line of JSON: the file's state, and an error or the number of keys; then them."""
    head: dict[str, Any] = {}
    table = b""
    try:
        text, head["state"] = read_file(Path(path))
        if is_unwritten(text):
            raise KeyFileError(f"api_keys {path} is empty; `[]` says that there are no keys")
        entries = parse(text, f"api_keys {path}")
        head["num_keys"], table = len(entries), pack(entries)
    except KeyFileError as error:
        head["error"] = str(error)
    except MemoryError:
        head["error"] = f"api_keys {path} takes more than {MEMORY_LIMIT_BYTES >> 20} MiB to read"
    return json.dumps(head).encode() + b"\n" + table


def main() -> None:
    """Writes the answer for the file that the command line names."""
    sys.stdout.buffer.write(_answer(sys.argv[1]))
