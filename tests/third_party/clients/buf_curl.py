"""By reflection: text, usage, finish reason and order of the stream, `invalid_argument`."""

import json
import subprocess
import sys
from pathlib import Path

from demo import (
    ANSWER,
    BAD_TEMPERATURE,
    COMPLETION_TOKENS,
    GRPC,
    PROMPT_TOKENS,
    QUESTION,
    REFUSAL,
)

URL = f"http://{GRPC}/signalbox.inference.v1.InferenceService/Chat"


def chat(temperature: float) -> subprocess.CompletedProcess[str]:
    message = {"role": "CHAT_ROLE_USER", "content": [{"text": QUESTION}]}
    sampling = {"temperature": temperature, "max_tokens": 24}
    data = json.dumps({"messages": [message], "sampling_params": sampling})
    buf = Path(sys.executable).with_name("buf")
    options = ["--protocol", "grpc", "--http2-prior-knowledge", "--data", data]
    return subprocess.run([buf, "curl", *options, URL], capture_output=True, text=True)


done = chat(0)
assert done.returncode == 0, done.stderr
separated = done.stdout.strip().replace("}\n{", "},{")
answers = json.loads(f"[{separated}]")
deltas = [delta for answer in answers for delta in answer.get("outputs", [])]
assert "".join(delta.get("text", "") for delta in deltas) == ANSWER
reasons = [delta.get("finish", {}).get("reason") for delta in deltas]
assert reasons == [None] * (len(reasons) - 1) + ["FINISH_REASON_STOP"]
usage = answers[-1]["usage"]
assert (usage["promptTokens"], usage["completionTokens"]) == (PROMPT_TOKENS, COMPLETION_TOKENS)

refused = chat(BAD_TEMPERATURE)
assert refused.returncode != 0
error = json.loads(refused.stderr)
assert error["code"] == "invalid_argument"
assert REFUSAL in error["message"]
