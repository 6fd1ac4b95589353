"""The models of a router as operators see them: listed, loaded and unloaded."""

import time
from collections.abc import Iterator

from signalbox_contract.errors import FailedPrecondition, RpcError
from signalbox_protos.operations.v1 import model_launcher_pb2 as launcher_pb
from signalbox_protos.operations.v1 import operations_pb2 as pb
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.launcher.launcher_client import LauncherClient
from signalbox_router.schedulers.scheduler_pool import Schedulers


class OperatedModels:
    """Answers the operators' calls about models."""

    def __init__(self, schedulers: Schedulers, launcher: LauncherClient | None) -> None:
        """`launcher` is None if the models are started by hand."""
        self._schedulers = schedulers
        self._launcher = launcher

    def statuses(self) -> Iterator[pb.ModelStatus]:
        """Yields the served models that no launcher has, then the launcher's."""
        launched = self._schedulers.starts.launched
        for model in self._schedulers.models.served:
            if launched.find(model.name) is None:
                num_live = self._schedulers.num_live_of(model)
                yield pb.ModelStatus(model=self._described(model), num_live_requests=num_live)
        said = {one.name: one for one in self._launcher.said.models} if self._launcher else {}
        for known, use in zip(launched.models, self._schedulers.uses(), strict=True):
            status = pb.ModelStatus(
                model=said[use.name],
                num_live_requests=use.num_live,
                num_waiting_requests=use.num_waiting,
            )
            held_s = max(0.0, known.held_until - time.monotonic())
            status.model.retry_after_ns = int(held_s * 1e9)
            yield status

    async def load(self, name: str) -> None:
        """Returns when a model is served. Raises RpcError."""
        launched = self._schedulers.starts.launched.find(name)
        if launched is not None:
            await self._schedulers.starts.wait(launched.name)
        elif self._launcher is None:
            raise _no_launcher()
        else:
            self._schedulers.models.of(name)

    async def unload(self, name: str) -> None:
        """Returns when a model's processes have ended. Raises RpcError."""
        if self._launcher is None:
            raise _no_launcher()
        await self._launcher.unload(name)

    def _described(self, model: ServedModel) -> launcher_pb.LaunchedModel:
        return launcher_pb.LaunchedModel(
            name=model.name,
            other_names=(*model.aliases, *model.started_as),
            state=launcher_pb.LaunchedModel.STATE_LOADED,
            scheduler=next(iter(self._schedulers.addresses_of(model)), ""),
            task=model.task,
            max_model_len=model.window,
            architecture=model.architecture,
        )


def _no_launcher() -> RpcError:
    return FailedPrecondition(
        "this router loads and unloads no models; `signalbox serve A B C` starts one that does"
    )
