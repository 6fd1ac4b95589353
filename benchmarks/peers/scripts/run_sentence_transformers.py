"""sentence-transformers behind /v1/embeddings, as small as a server can be that batches.

Runs in the peer's own interpreter, so it needs nothing but sentence-transformers. Texts that wait
are encoded together; `encode` sorts them by length and pads 32 at a time.
"""

import argparse
import base64
import json
import queue
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from sentence_transformers import SentenceTransformer

MAX_WAITING = 256
"""Texts that are encoded together, if so many wait."""

Waiting = tuple[list[str], Future]


def encode_for_ever(model: SentenceTransformer, waiting: "queue.Queue[Waiting]") -> None:
    """Encodes what waits, and gives each request its vectors."""
    while True:
        requests = [waiting.get()]
        while not waiting.empty() and sum(len(texts) for texts, _ in requests) < MAX_WAITING:
            requests.append(waiting.get())
        texts = [text for asked, _ in requests for text in asked]
        try:
            vectors = iter(model.encode(texts, show_progress_bar=False))
            for asked, future in requests:
                future.set_result([next(vectors) for _ in asked])
        except Exception as failure:  # the requests fail, the server goes on
            for _, future in requests:
                if not future.done():
                    future.set_exception(failure)


def make_handler(waiting: "queue.Queue[Waiting]") -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"data": [{"id": "m"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            future: Future = Future()
            waiting.put((body["input"], future))
            vectors = [
                base64.b64encode(vector.astype("<f4").tobytes()).decode()
                for vector in future.result()
            ]
            data = [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]
            self._answer({"data": data, "usage": {}})

        def _answer(self, content: dict) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_arguments: object) -> None:
            """Logs nothing."""

    return Handler


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--num-threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.num_threads)
    model = SentenceTransformer(arguments.model, device="cpu")
    waiting: queue.Queue[Waiting] = queue.Queue()
    threading.Thread(target=encode_for_ever, args=(model, waiting), daemon=True).start()
    Server(("127.0.0.1", arguments.port), make_handler(waiting)).serve_forever()


if __name__ == "__main__":
    main()
