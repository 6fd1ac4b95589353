"""A hub on this machine: repositories are folders, and it speaks what huggingface_hub asks for."""

import hashlib
import http.server
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import gguf
import numpy as np
import pytest

COMMIT = "c0ffee" + "0" * 34
GATED, TOKEN = "some-org/Gated", "hf_secret"


def write_gguf(
    path: Path, num_bytes: int, architecture: str = "llama", tokens: Sequence[str] = ()
) -> None:
    """Writes so many bytes, which begin with the head of a model."""
    writer = gguf.GGUFWriter(path, architecture)
    if tokens:
        writer.add_token_list(tokens)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with path.open("ab") as file:
        file.write(os.urandom(num_bytes - path.stat().st_size))


class Asked(NamedTuple):
    """One request: its method, its path without the query, and two of its headers."""

    method: str
    path: str
    range: str | None
    authorization: str | None


class FakeHub(http.server.ThreadingHTTPServer):
    """Serves `root/org/name` as org/name, branch main and tag v2. `GATED` asks for `TOKEN`."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.asked: list[Asked] = []
        self.cuts: list[int] = []
        """Of the next downloads: bytes after which the connection breaks."""
        self.num_sent = 0
        """Bytes of files that downloads asked for."""
        self.ignores_ranges = False
        """True if it sends whole files where it is asked for parts."""
        self.stall_after: int | None = None
        """Bytes of the next longer download after which the hub waits for `go_on`."""
        self.go_on = threading.Event()
        self.is_ill = False
        """True if it answers each request with the status 503."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def repository(self, name: str = "some-org/Some-Model") -> Path:
        """Returns the folder of a repository, which it makes."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def downloads(self) -> list[str]:
        """Returns the names of the files that were fetched, once for each request."""
        return [
            one.path.partition("/resolve/")[2].partition("/")[2]
            for one in self.asked
            if one.method == "GET" and "/resolve/" in one.path
        ]


@contextmanager
def running_hub(root: Path) -> Iterator[FakeHub]:
    """Runs a hub until the context ends."""
    root.mkdir(parents=True, exist_ok=True)
    with FakeHub(root) as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield hub
        finally:
            hub.go_on.set()
            hub.shutdown()
            thread.join()


def point_at(monkeypatch: pytest.MonkeyPatch, url: str, *, is_offline: bool = False) -> None:
    """As HF_ENDPOINT and HF_HUB_OFFLINE do, which are read when huggingface_hub is imported.

    It tries again at once where nothing answers, and not after 23 seconds in all.
    """
    at_once = SimpleNamespace(**vars(time) | {"sleep": lambda _: None})
    monkeypatch.setattr("huggingface_hub.utils._http.time", at_once)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urllib.parse.unquote(self.path.partition("?")[0])
        token = self.headers["Authorization"]
        self.server.asked.append(Asked(self.command, path, self.headers["Range"], token))
        is_api = path.startswith("/api/models/")
        org, name, *rest = path.removeprefix("/api/models").strip("/").split("/")
        repository = f"{org}/{name}"
        folder = self.server.root / repository
        if self.server.is_ill:
            self._refuse(503, "", "Service unavailable")
        elif token not in (None, f"Bearer {TOKEN}"):
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif not folder.is_dir():
            self._refuse(404, "RepoNotFound", "Repository not found")
        elif repository == GATED and token is None and not is_api:
            self._refuse(403, "GatedRepo", "Access to model is restricted")
        elif not rest or rest[1] not in ("main", "v2", COMMIT):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
        elif is_api:
            self._describe(rest[0], folder, repository)
        elif not (file := folder.joinpath(*rest[2:])).is_file():
            self._refuse(404, "EntryNotFound", "Entry not found")
        else:
            self._send_file(file.read_bytes())

    def _describe(self, what: str, folder: Path, repository: str) -> None:
        if what == "revision":
            self._json({"id": repository, "sha": COMMIT, "siblings": []})
            return
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        entry = {"type": "file", "oid": "0" * 40}
        self._json(
            [
                entry | {"path": file.relative_to(folder).as_posix(), "size": file.stat().st_size}
                for file in files
            ]
        )

    def _send_file(self, data: bytes) -> None:
        etag = hashlib.sha256(data).hexdigest()
        asked = None if self.server.ignores_ranges else self.headers["Range"]
        first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)), len(data) - 1)
        headers = {"ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        self._send(206 if asked else 200, data[start : end + 1], headers)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"X-Repo-Commit": COMMIT}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "GET":
            return
        if "/resolve/" not in self.path:
            self.wfile.write(body)
            return
        self.server.num_sent += len(body)
        if self.server.cuts:
            body = body[: self.server.cuts.pop(0)]
        stall = self.server.stall_after
        if stall is not None and stall < len(body):
            self.server.stall_after = None
        else:
            stall = None
        with suppress(BrokenPipeError, ConnectionResetError):  # the client may end as well
            self.wfile.write(body[:stall])
            if stall is not None:
                self.server.go_on.wait()
                self.wfile.write(body[stall:])

    def log_message(self, *_: object) -> None:
        """Keeps quiet."""
