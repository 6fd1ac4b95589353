"""Converts the model, the server's state and its load to messages of vllm.grpc.engine.

Numbers that a router does not know stay 0, which the protocol reads as unknown.
"""

import datetime
import json

from smg_grpc_proto import vllm_engine_pb2 as pb

from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.load_client import ClusterLoad

SERVER_TYPE = "vllm-grpc"
TOKENIZER_PATH = "grpc:///vllm.grpc.engine.VllmEngine/GetTokenizer"
"""Value of `tokenizer_path`. Gateways try it, and without one `model_path`, as a local path and
as a hub id, before they call GetTokenizer. This is neither."""


def model_info(model: ServedModel) -> pb.GetModelInfoResponse:
    tokenizer = model.tokenizer
    return pb.GetModelInfoResponse(
        model_path=model.name,
        served_model_name=model.name,
        tokenizer_path=TOKENIZER_PATH,
        is_generation=model.task == "generate",
        max_context_length=model.window,
        max_req_input_len=model.window - 1,
        vocab_size=model.vocab_size,
        architectures=[model.architecture],
        eos_token_ids=model.eos_token_ids,
        bos_token_id=tokenizer.special_token_id("bos_token") or 0,
        pad_token_id=tokenizer.special_token_id("pad_token") or 0,
        default_sampling_params_json=_defaults_json(model),
    )


def _defaults_json(model: ServedModel) -> str:
    """Returns the defaults that differ from vLLM's own, as JSON under vLLM's names; "" if none."""
    defaults = model.sampling_defaults.fields()
    return json.dumps(defaults, separators=(",", ":"), sort_keys=True) if defaults else ""


def server_info(
    model: ServedModel, *, num_live: int, uptime_s: float, last_received_at: float
) -> pb.GetServerInfoResponse:
    return pb.GetServerInfoResponse(
        server_type=SERVER_TYPE,
        active_requests=num_live,
        uptime_seconds=uptime_s,
        last_receive_timestamp=last_received_at,
        data_parallel_size=1,
        model_dtype=model.dtype,
        constrained_decoding_start="first_token",
    )


def loads(load: ClusterLoad, *, version: str, now: datetime.datetime) -> pb.GetLoadsResponse:
    """Returns the load; all workers are one engine to a gateway. A swapped-out request waits."""
    num_waiting = load.num_waiting + load.num_swapped
    one = pb.SchedulerLoad(
        num_running_reqs=load.num_running,
        num_waiting_reqs=num_waiting,
        num_total_reqs=load.num_running + num_waiting,
        token_usage=load.num_used_kv_blocks / max(1, load.num_kv_blocks),
    )
    return pb.GetLoadsResponse(
        timestamp=now.isoformat(), version=version, dp_rank_count=1, loads=[one]
    )
