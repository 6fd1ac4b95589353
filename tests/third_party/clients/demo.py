"""What the demo model answers, greedily, and where it is served."""

import os

GRPC = os.environ["SIGNALBOX_ROUTER"]
"""HOST:PORT of the router's gRPC API."""
HTTP = os.environ["SIGNALBOX_HTTP"]
"""URL of the HTTP API, `/v1` included."""

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of South Korea?"
ANSWER = "The capital of South Korea is Seoul."
MESSAGES = [{"role": "user", "content": QUESTION}]
PROMPT_TOKENS, COMPLETION_TOKENS = 38, 9
"""Tokens of QUESTION in the chat template, and of ANSWER with the end of sequence."""
BAD_TEMPERATURE = 9.0
REFUSAL = "temperature: allowed: [0, 2]; given: 9.0"

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "year": {"type": "integer"}},
    "required": ["city", "year"],
}
