"""Services by reflection, text, usage, finish reason, order of the stream, `INVALID_ARGUMENT`."""

import grpc
import grpc_requests
from demo import (
    ANSWER,
    BAD_TEMPERATURE,
    COMPLETION_TOKENS,
    GRPC,
    MODEL,
    PROMPT_TOKENS,
    QUESTION,
    REFUSAL,
)

SERVICE = "signalbox.inference.v1.InferenceService"


def chat_request(temperature: float) -> dict[str, object]:
    message = {"role": "CHAT_ROLE_USER", "content": [{"text": QUESTION}]}
    return {
        "messages": [message],
        "sampling_params": {"temperature": temperature, "max_tokens": 24},
    }


client = grpc_requests.Client.get_by_endpoint(GRPC)
assert {SERVICE, "grpc.health.v1.Health"} <= set(client.service_names)
assert client.request(SERVICE, "GetModel", {})["name"] == MODEL

answers = list(client.request(SERVICE, "Chat", chat_request(0)))
deltas = [delta for answer in answers for delta in answer.get("outputs", [])]
assert "".join(delta.get("text", "") for delta in deltas) == ANSWER
reasons = [delta.get("finish", {}).get("reason") for delta in deltas]
assert reasons == [None] * (len(reasons) - 1) + ["FINISH_REASON_STOP"]
usage = answers[-1]["usage"]
assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, COMPLETION_TOKENS)

try:
    list(client.request(SERVICE, "Chat", chat_request(BAD_TEMPERATURE)))
except grpc.RpcError as error:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert REFUSAL in error.details()
else:
    raise AssertionError("a temperature of 9 is taken")
