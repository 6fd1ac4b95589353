"""Eight streamed chats: every text, tokens as the server's usage counts them, no error."""

import json
import subprocess
import sys
from pathlib import Path

from demo import ANSWER, COMPLETION_TOKENS, HTTP, MODEL, PROMPT_TOKENS, QUESTION
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

NUM_REQUESTS = 8

# AIPerf loads a tokenizer even when the server counts; this one makes a word of any text.
words = models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")
PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained("tokenizer")
Path("questions.jsonl").write_text(json.dumps({"text": QUESTION}) + "\n")

subprocess.run(
    [
        Path(sys.executable).with_name("aiperf"),
        "profile",
        *("--model", MODEL, "--url", HTTP.removesuffix("/v1"), "--endpoint-type", "chat"),
        *("--input-file", "questions.jsonl", "--custom-dataset-type", "single_turn"),
        *("--request-count", str(NUM_REQUESTS), "--concurrency", "4", "--streaming"),
        *("--extra-inputs", "temperature:0", "--use-server-token-count"),
        *("--tokenizer", Path("tokenizer").resolve(), "--ui", "none"),
        *("--export-outputs-json", "--output-artifact-dir", "aiperf"),
    ],
    check=True,
)
texts = json.loads(Path("aiperf/outputs.json").read_text())["data"]
assert [text["response_text"] for text in texts] == [ANSWER] * NUM_REQUESTS
report = json.loads(Path("aiperf/profile_export_aiperf.json").read_text())
assert report["request_count"]["avg"] == NUM_REQUESTS
assert report["error_summary"] == []
assert report["total_usage_prompt_tokens"]["avg"] == NUM_REQUESTS * PROMPT_TOKENS
assert report["total_usage_completion_tokens"]["avg"] == NUM_REQUESTS * COMPLETION_TOKENS
