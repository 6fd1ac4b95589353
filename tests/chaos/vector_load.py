"""Mixed requests for vectors: of one text and of many, from one token to more than a step has."""

import asyncio
import random

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from tests.chaos.checks.history import Record
from tests.chaos.load import Load

LEAVE_S = 0.02
"""The answer is one message: a client that leaves does so after a number of these."""


def make_calls() -> dict[str, pb.EmbedRequest]:
    """Returns the requests by name."""
    rng = random.Random(1)
    lengths = {"short": (1,), "long": (700,), "several": (3, 300, 16, 17), "many": range(1, 90, 2)}
    return {name: make_call(*each, rng=rng) for name, each in lengths.items()}


def make_call(*lengths: int, rng: random.Random) -> pb.EmbedRequest:
    inputs = [[rng.randrange(300) for _ in range(length)] for length in lengths]
    return pb.EmbedRequest(
        inputs=[pb.PoolingInput(token_ids=pb.TokenIds(ids=token_ids)) for token_ids in inputs]
    )


class VectorLoad(Load):
    """Clients of Embed."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._calls = make_calls()

    async def learn(self) -> None:
        """Asks every call once while nothing happens."""
        async with self._stub() as stub:
            for name in self._calls:
                self.undisturbed[name] = await self._ask(stub, name)
        assert all(record.is_ok for record in self.undisturbed.values()), self.undisturbed
        self.records.clear()

    async def _talk(
        self, stub: pb_grpc.InferenceServiceStub, record: Record, leave_after: int | None
    ) -> None:
        call = stub.Embed(self._calls[record.shape])

        def leave() -> None:
            record.has_left = call.cancel()

        timer = None
        if leave_after is not None:
            timer = asyncio.get_running_loop().call_later(leave_after * LEAVE_S, leave)
        try:
            record.add_vectors(await call)
        finally:
            if timer is not None:
                timer.cancel()
            call.cancel()
