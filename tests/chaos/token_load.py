"""Mixed requests for tokens: greedy and seeded, branches, stop strings, predictions.

Workers may compute drafts of all but those that `learn` asks.
"""

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from tests.chaos.checks.history import Record
from tests.chaos.load import Load

LETTERS = [*b"abcdefghijklmnopqrstuvwxyz"]
"""Tokens whose text is read as the same tokens, so that predictions come true."""
_ALONE: dict[str, tuple[pb.GenerateRequest, Record]] = {}
"""Each shape, and what it says alone: all stacks run one model, and to learn it takes seconds."""


def make_shapes() -> dict[str, pb.GenerateRequest]:
    """The requests that are asked again and again, by name."""
    shapes = {}
    letters = {"max_tokens": 90, "logprobs": 1, "allowed_token_ids": LETTERS}
    for number, length in enumerate((1, 15, 40, 90)):
        prompt = [number + 1] * length
        for name, fields in {
            "greedy": {"max_tokens": 90},
            "short": {"max_tokens": 8},
            "seeded": {"max_tokens": 60, "temperature": 1.0, "seed": number, "n": 2, "logprobs": 1},
            **({"letters": letters} if number % 2 else {}),
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


def with_prediction(request: pb.GenerateRequest, text: str) -> pb.GenerateRequest:
    """The same request with what it says as its prediction, one of twelve letters wrong."""
    predicted = pb.GenerateRequest()
    predicted.CopyFrom(request)
    wrong = ("?" if i % 12 == 7 else letter for i, letter in enumerate(text))
    predicted.sampling_params.prediction = "".join(wrong)
    return predicted


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
        """Asks the shapes one after the other without drafts; stop strings and predictions come
        from what they say."""
        async with self._stub() as stub:
            for name in list(self._shapes):
                await self._ask_alone(stub, name)
                text = self.undisturbed[name].text[0]
                if name.startswith(("greedy", "letters")):
                    self._shapes[f"stopped {name}"] = with_stop(self._shapes[name], text)
                    await self._ask_alone(stub, f"stopped {name}")
                if name.startswith("letters"):
                    for known in (name, f"stopped {name}"):
                        self._shapes[f"predicted {known}"] = with_prediction(
                            self._shapes[known], text
                        )
                        self.undisturbed[f"predicted {known}"] = self.undisturbed[known]
        assert all(record.is_ok for record in self.undisturbed.values()), self.undisturbed
        assert not any(self.count_drafts())
        self.records.clear()

    async def _ask_alone(self, stub: pb_grpc.InferenceServiceStub, name: str) -> None:
        params = self._shapes[name].sampling_params
        params.speculation = False
        self.undisturbed[name] = await self._ask(stub, name)
        params.ClearField("speculation")

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
