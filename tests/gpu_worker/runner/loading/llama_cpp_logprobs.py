"""Log probabilities of llama.cpp for the first token after 100 prompts, by type of block.

    python -m tests.gpu_worker.runner.loading.llama_cpp_logprobs LLAMA_SERVER [TYPE ...]

makes `llama_cpp_logprobs.json` with a llama-server (build 11434 on AVX-512 made the one that is
here): the demo model's values as F32, its own Q4_1, and Q8_0 as gguf's quantizer makes it, which
the test makes again. Q4_0, Q5_0 and Q5_1 were as near when they were compared. K-quants are
missing: only llama-quantize makes them. Its own Q4_K_M, Q5_K_M and Q6_K of the demo model differed
by 0.09 on average, single values up to 0.6, with 88 to 95 first tokens the same; llama.cpp codes
activations of K types 256 at a time.

Of `CONVERTED` it is the log probability of some tokens of `PROMPT` after those before them, with
the file's values as F32, as llama.cpp rounds activations beside F16.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer

from benchmarks.perplexity import TEXT
from tests.gpu_worker.runner.loading.converted_models import FOLDER, PROMPT, VOCAB
from tests.gpu_worker.runner.loading.gguf_files import expand, open_path, rewrite_demo
from tests.transformers_demo import DEMO
from tests.waiting import EVENT_S

KINDS = ("F32", "Q4_1", "Q8_0")
NUM_PROMPTS, NUM_LAYERS, NUM_TOP = 100, 30, 3
CONVERTED = (
    *("granitehybrid", "granitehybrid-moe", "lfm2", "lfm2moe"),
    *("nemotron_h", "nemotron_h_moe"),
    *("qwen35", "qwen35moe", "qwen3next"),
)
"""Files of `converted_models`."""
PLACES = (1, 8, 40, 69)
"""Places in `PROMPT` of the tokens that are compared."""
RECORDED = Path(__file__).with_suffix(".json")
_PORT = 51590


def make_prompts() -> list[list[int]]:
    """Passages of a text, of 4 to 43 tokens."""
    tokenizer = Tokenizer.from_str(open_path(DEMO).tokenizer_files()["tokenizer.json"].decode())
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids
    starts = range(0, 26 * NUM_PROMPTS, 26)
    return [ids[start : start + 4 + index % 40] for index, start in enumerate(starts)]


def make_file(folder: Path, kind: str) -> Path:
    """The demo model in one type; it is Q4_1 itself."""
    if kind == "Q4_1":
        return DEMO
    return rewrite_demo(folder / f"demo.{kind}.gguf", kind, num_layers=NUM_LAYERS)


def record(
    server: str, path: Path, prompts: list[list[int]], *, num_top: int = NUM_TOP
) -> list[list[list[float]]]:
    """Returns [prompt][rank] (token id, log probability), the likeliest first."""
    flags = ["-c", "256", "-np", "1", "--no-warmup", "-t", "2", "--port", str(_PORT)]
    flags += ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]  # it rounds K and V to 16 bits else
    with subprocess.Popen([server, "-m", str(path), *flags], stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_it_answers()
            return [_ask(prompt, num_top) for prompt in prompts]
        finally:
            process.terminate()


def _wait_until_it_answers() -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError("llama-server does not answer")


def _ask(prompt: list[int], num_top: int) -> list[list[float]]:
    body = {"prompt": prompt, "n_predict": 1, "n_probs": num_top, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{_PORT}/completion",
        json.dumps(body | {"cache_prompt": False}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=EVENT_S) as answer:
        (first,) = json.load(answer)["completion_probabilities"]
    return [[top["id"], round(top["logprob"], 4)] for top in first["top_logprobs"]]


def record_converted(server: str, folder: Path, name: str) -> list[float]:
    """Returns the log probability of each of `PLACES`."""
    path = expand(gguf.GGUFReader(FOLDER / f"{name}.gguf"), folder / f"{name}.gguf")
    prompts = [PROMPT[:place] for place in PLACES]
    found = list[float]()
    for place, row in zip(PLACES, record(server, path, prompts, num_top=VOCAB), strict=True):
        found += [value for token, value in row if token == PROMPT[place]]
    return found


def main(server: str, *kinds: str) -> None:
    prompts = make_prompts()
    content: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds or (*KINDS, *CONVERTED):
            if kind in CONVERTED:
                content[kind] = record_converted(server, Path(folder), kind)
            else:
                content[kind] = record(server, make_file(Path(folder), kind), prompts)
            print(kind, "recorded", file=sys.stderr)
    RECORDED.write_text(json.dumps(content, separators=(",", ":")).replace("]],", "]],\n") + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
