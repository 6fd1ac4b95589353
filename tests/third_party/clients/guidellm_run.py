"""A benchmark of four streamed chats: every text, tokens as the server's usage counts them."""

import json
import os
import subprocess
import sys
from pathlib import Path

from demo import ANSWER, COMPLETION_TOKENS, HTTP, MODEL, PROMPT_TOKENS, QUESTION

NUM_REQUESTS = 4
POLL_S = "2"
"""Longer than a request takes: guidellm 0.8.1 may lose an update that comes when a poll ends."""

Path("prompts.jsonl").write_text((json.dumps({"prompt": QUESTION}) + "\n") * NUM_REQUESTS)
backend = {
    "kind": "openai_http",
    "target": HTTP.removesuffix("/v1"),
    "model": MODEL,
    "extras": {"body": {"temperature": 0}},
}
subprocess.run(
    [
        Path(sys.executable).with_name("guidellm"),
        "run",
        *("--backend", json.dumps(backend), "--profile", "kind=synchronous"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--data", "kind=json_file,path=prompts.jsonl"),
        *("--output", "kind=json,path=guidellm.json", "--disable-console"),
    ],
    env={**os.environ, "GUIDELLM__MP_POLL_INTERVAL": POLL_S},
    check=True,
)
[benchmark] = json.loads(Path("guidellm.json").read_text())["benchmarks"]
requests = benchmark["requests"]
assert (requests["errored"], requests["incomplete"]) == ([], [])
assert [request["output"] for request in requests["successful"]] == [ANSWER] * NUM_REQUESTS
for request in requests["successful"]:
    assert request["input_metrics"]["text_tokens"] == PROMPT_TOKENS
    assert request["output_metrics"]["text_tokens"] == COMPLETION_TOKENS
