"""The launcher of the workers: what it says of itself, and what operators ask of it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import count

from contract.description_bounds import check_description
from contract.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Unavailable
from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import stats_pb2
from scheduler_svc.cluster import Cluster
from scheduler_svc.requests.failures import RETRY_AFTER_S

ANSWER_S = 10.0
"""Seconds for the launcher to say whether it follows an order."""
_MAX_NAMED = 4


class LauncherLink:
    """The stream of the launcher, while it is open, and the orders that wait for its answers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.state: stats_pb2.LauncherState | None = None
        """Last state that the launcher has sent; None while there is no launcher."""
        self._orders: asyncio.Queue[pb.LaunchWorkersResponse | None] | None = None
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._numbers = count(1)

    async def hold(
        self, requests: AsyncIterator[pb.LaunchWorkersRequest]
    ) -> AsyncGenerator[pb.LaunchWorkersResponse, None]:
        """Yields orders until the launcher ends its stream."""
        if self._orders is not None:
            raise AlreadyExists("another launcher keeps the workers of this scheduler")
        orders = self._orders = asyncio.Queue()
        reader = asyncio.create_task(self._read(requests, orders))
        try:
            while (order := await orders.get()) is not None:
                yield order
            reader.result()
        finally:
            reader.cancel()
            self._orders = self.state = None
            for answer in self._answers.values():
                if not answer.done():  # the operator may have left just now
                    answer.set_exception(Unavailable("the launcher has ended", RETRY_AFTER_S))
            self._answers.clear()

    async def scale(self, request: pb.ScaleWorkersRequest) -> pb.ScaleWorkersResponse:
        """Asks the launcher for another number of workers."""
        if not 1 <= request.min_workers <= request.max_workers:
            asked = f"{request.min_workers}..{request.max_workers}"
            raise InvalidArgument("min_workers", asked, "1 to max_workers")
        if self._orders is None:
            raise FailedPrecondition(self._no_launcher())
        order = next(self._numbers)
        answer = self._answers[order] = asyncio.get_running_loop().create_future()
        self._orders.put_nowait(
            pb.LaunchWorkersResponse(
                order=order, min_workers=request.min_workers, max_workers=request.max_workers
            )
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                refusal = await answer
        except TimeoutError:
            raise Unavailable("the launcher does not answer", RETRY_AFTER_S) from None
        finally:
            self._answers.pop(order, None)
        if refusal:
            raise FailedPrecondition(refusal)
        return pb.ScaleWorkersResponse(launcher=self.state)

    async def _read(
        self,
        requests: AsyncIterator[pb.LaunchWorkersRequest],
        orders: "asyncio.Queue[pb.LaunchWorkersResponse | None]",
    ) -> None:
        try:
            async for request in requests:
                try:
                    check_description(request.state)
                except ValueError as error:
                    raise InvalidArgument("state", None, reason=str(error)) from None
                self.state = request.state
                answer = self._answers.pop(request.order, None)
                if answer is not None and not answer.done():
                    answer.set_result(request.refusal)
        finally:
            orders.put_nowait(None)

    def _no_launcher(self) -> str:
        workers = [loop.worker_name for loop in self._cluster.step_loops]
        told = "it has no workers"
        if workers:
            more = f" and {len(workers) - _MAX_NAMED} more" if len(workers) > _MAX_NAMED else ""
            told = f"{', '.join(workers[:_MAX_NAMED])}{more} were started one by one"
        return (
            f"no launcher keeps the workers of this scheduler: {told}; start more with `signalbox"
            " worker`, end one by SIGTERM, or let `signalbox serve --workers N` keep them"
        )
