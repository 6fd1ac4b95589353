"""Converts messages of the launcher's service."""

import time
from collections.abc import Iterable

from signalbox_contract.model_state import ModelState
from signalbox_protos.operations.v1 import model_launcher_pb2 as pb
from signalbox_router.schedulers.launcher.launched_models import LaunchedModel
from signalbox_router.schedulers.launcher.model_starts import ModelUse

_STATES = {pb.LaunchedModel.State.Value(f"STATE_{one.name}"): one for one in ModelState}


def decode_model(message: pb.LaunchedModel) -> LaunchedModel:
    """Returns a model as the launcher describes it; one in an unknown state is not loaded."""
    retry_after_s = message.retry_after_ns / 1e9
    return LaunchedModel(
        name=message.name,
        other_names=tuple(message.other_names),
        state=_STATES.get(message.state, ModelState.UNLOADED),
        scheduler=message.scheduler,
        task=message.task,
        max_model_len=message.max_model_len,
        architecture=message.architecture,
        reason=message.reason,
        held_until=time.monotonic() + retry_after_s if retry_after_s else 0.0,
    )


def encode_uses(uses: Iterable[ModelUse], *, revision: int) -> pb.ReportUseRequest:
    """Returns the report of the models that are used; others are left out."""
    used = [one for one in uses if one.num_live or one.num_waiting]
    return pb.ReportUseRequest(
        uses=[pb.ModelUse(**one._asdict()) for one in used], revision=revision
    )
