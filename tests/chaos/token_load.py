"""Mixed requests for tokens: greedy and seeded, branches, stop strings."""

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from tests.chaos.checks.history import Record
from tests.chaos.load import Load

_ALONE: dict[str, tuple[pb.GenerateRequest, Record]] = {}
"""Each shape, and what it says alone: all stacks run one model, and to learn it takes seconds."""


def make_shapes() -> dict[str, pb.GenerateRequest]:
    """The requests that are asked again and again, by name."""
    shapes = {}
    for number, length in enumerate((1, 15, 40, 90)):
        prompt = [number + 1] * length
        for name, fields in {
            "greedy": {"max_tokens": 90},
            "short": {"max_tokens": 8},
            "seeded": {"max_tokens": 60, "temperature": 1.0, "seed": number, "n": 2},
        }.items():
            params = pb.SamplingParams(**{"temperature": 0, "ignore_eos": True, **fields})
            request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params)
            shapes[f"{name} {length}"] = request
    return shapes


def with_stop(request: pb.GenerateRequest, text: str) -> pb.GenerateRequest:
    """The same request with a stop string from the middle of what it says."""
    stopped = pb.GenerateRequest()
    stopped.CopyFrom(request)
    stopped.sampling_params.stop.append(text[len(text) // 2 :][:6])
    return stopped


class TokenLoad(Load):
    """Clients of Generate."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._shapes = make_shapes()

    async def learn(self) -> None:
        """Asks every shape once while nothing happens, unless a load of this process has."""
        if not _ALONE:
            await self._ask_all()
            for name, shape in self._shapes.items():
                _ALONE[name] = (shape, self.undisturbed[name])
        self._shapes = {name: shape for name, (shape, _) in _ALONE.items()}
        self.undisturbed = {name: record for name, (_, record) in _ALONE.items()}

    async def _ask_all(self) -> None:
        """Asks the shapes one after the other; the stop strings come from what they say."""
        async with self._stub() as stub:
            for name in list(self._shapes):
                whole = await self._ask(stub, name)
                self.undisturbed[name] = whole
                if name.startswith("greedy"):
                    shape = with_stop(self._shapes[name], whole.text[0])
                    self._shapes[f"stopped {name}"] = shape
                    self.undisturbed[f"stopped {name}"] = await self._ask(stub, f"stopped {name}")
        assert all(record.is_ok for record in self.undisturbed.values()), self.undisturbed
        self.records.clear()

    async def _talk(
        self, stub: pb_grpc.InferenceServiceStub, record: Record, leave_after: int | None
    ) -> None:
        call = stub.Generate(self._shapes[record.shape])
        try:
            async for response in call:
                record.add(response)
                if record.num_messages == leave_after:
                    record.has_left = True
                    call.cancel()
        finally:
            call.cancel()
