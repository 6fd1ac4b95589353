"""Converts the served model and the load to messages of inference.v1."""

from signalbox_contract.model_state import ModelState
from signalbox_contract.pooling import PoolingModel, Task
from signalbox_contract.sampling_defaults import SamplingDefaults
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.limits.tenants import Caller
from signalbox_router.params.sampling_defaults import BUILT_IN
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.live_requests import RequestSlots
from signalbox_router.schedulers.launcher.launched_models import LaunchedModel
from signalbox_router.schedulers.load_client import ClusterLoad

_TASKS: dict[Task, pb.PoolingTask] = {
    "embed": pb.POOLING_TASK_EMBED,
    "classify": pb.POOLING_TASK_CLASSIFY,
    "token_embed": pb.POOLING_TASK_TOKEN_EMBED,
}
_STATES = {"": "MODEL_STATE_UNSPECIFIED"} | {
    str(one): f"MODEL_STATE_{one.name}" for one in ModelState
}


def load(cluster: ClusterLoad, live: RequestSlots) -> pb.GetLoadResponse:
    """Returns the load of the workers and of this router."""
    return pb.GetLoadResponse(
        num_live_requests=live.num_live,
        max_live_requests=live.max_live,
        num_waiting_requests=cluster.num_waiting,
        num_running_requests=cluster.num_running,
        num_swapped_requests=cluster.num_swapped,
        num_workers=cluster.num_workers,
        num_kv_blocks=cluster.num_kv_blocks,
        num_used_kv_blocks=cluster.num_used_kv_blocks,
    )


def model(
    served: ServedModel | LaunchedModel, caller: Caller, *, state: str = ""
) -> pb.GetModelResponse:
    """Describes a model, with the adapters that the caller may use.

    Args:
        state: what the launcher does with it; empty without a launcher.
    """
    if isinstance(served, LaunchedModel):
        return _not_loaded(served)
    return pb.GetModelResponse(
        name=served.name,
        architecture=served.architecture,
        dtype=served.dtype,
        vocab_size=served.vocab_size,
        max_model_len=served.max_model_len,
        has_chat_template=served.tokenizer.chat_template is not None,
        default_sampling_params=_defaults(served.sampling_defaults),
        effective_max_model_len=served.window,
        aliases=served.aliases,
        adapters=[one.name for one in served.adapters if caller.may_use(one.name)],
        pooling=None if served.pooling is None else _pooling(served, served.pooling),
        state=_STATES[state],
    )


def _not_loaded(launched: LaunchedModel) -> pb.GetModelResponse:
    task = next((number for name, number in _TASKS.items() if name == launched.task), None)
    return pb.GetModelResponse(
        name=launched.name,
        architecture=launched.architecture,
        max_model_len=launched.max_model_len,
        effective_max_model_len=launched.max_model_len,
        pooling=None if task is None else pb.PoolingInfo(task=task),
        state=_STATES[launched.state],
    )


def _pooling(served: ServedModel, pooling: PoolingModel) -> pb.PoolingInfo:
    texts = served.tokenizer.pooling_texts
    return pb.PoolingInfo(
        task=_TASKS[pooling.task],
        num_outputs=pooling.num_outputs,
        dimensions=pooling.dimensions,
        labels=served.labels,
        prompts=texts.prompts,
        default_prompt_name=texts.default_prompt_name or "",
        num_token_outputs=pooling.num_token_outputs,
    )


def _defaults(defaults: SamplingDefaults) -> pb.DefaultSamplingParams:
    of_model, override = defaults.model.fields(), defaults.override.fields()
    return pb.DefaultSamplingParams(
        **{**BUILT_IN, **of_model, **override},
        from_model=sorted(of_model.keys() - override.keys()),
        from_override=sorted(override),
    )
