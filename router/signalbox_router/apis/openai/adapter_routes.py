"""Handlers that load and unload LoRA adapters, as vLLM's server has them."""

from typing import ClassVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from signalbox_contract.errors import AlreadyExists, PermissionDenied
from signalbox_router.apis.openai.bodies.body_reader import BodyReader, ignored_header
from signalbox_router.apis.openai.requests.adapter_types import LoadAdapterBody, UnloadAdapterBody
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.route import OF_TOKENS, TEXT, Group, Route
from signalbox_router.limits.tenants import Tenants
from signalbox_router.schedulers.adapter_client import SchedulerAdapters


class AdapterApi:
    """The endpoints' handlers; they refuse all unless `adapters` is given."""

    def __init__(
        self, adapters: SchedulerAdapters | None, *, tenants: Tenants, bodies: BodyReader
    ) -> None:
        self._adapters, self._tenants, self._bodies = adapters, tenants, bodies

    async def load(self, request: Request) -> Response:
        """Loads a LoRA adapter on all workers, or on none."""
        adapters = self._allowed()
        body, _ = await self._bodies.read(request, LoadAdapterBody, into=lambda _: None)
        self._check_key(request, body.lora_name)
        try:
            await adapters.load(
                body.lora_name,
                body.lora_path,
                is_replacing=bool(body.load_inplace),
                base_model_name=body.base_model_name or "",
            )
        except AlreadyExists:  # a 400 in vLLM, whose clients look for these words
            message = "has already been loaded; unload it, or set load_inplace to true"
            raise BadRequest(f"lora_name: {body.lora_name!r} {message}", "lora_name") from None
        return _said(request, f"Success: LoRA adapter {body.lora_name!r} added successfully.")

    async def unload(self, request: Request) -> Response:
        """Takes a LoRA adapter away; requests that run finish with it."""
        adapters = self._allowed()
        body, _ = await self._bodies.read(request, UnloadAdapterBody, into=lambda _: None)
        self._check_key(request, body.lora_name)
        await adapters.unload(body.lora_name)
        return _said(request, f"Success: LoRA adapter {body.lora_name!r} removed successfully.")

    ROUTES: ClassVar[tuple[Route, ...]] = (
        Route("/v1/load_lora_adapter", load, Group.MODELS, LoadAdapterBody, OF_TOKENS, (TEXT,)),
        Route(
            "/v1/unload_lora_adapter", unload, Group.MODELS, UnloadAdapterBody, OF_TOKENS, (TEXT,)
        ),
    )

    def _allowed(self) -> SchedulerAdapters:
        if self._adapters is None:
            raise PermissionDenied("adapters are loaded here only with --allow-adapter-loading")
        return self._adapters

    def _check_key(self, request: Request, name: str) -> None:
        address = request.client.host if request.client else ""
        caller = self._tenants.identify(request.headers.items(), address=address)
        caller.check_model(name)


def _said(request: Request, text: str) -> Response:
    return PlainTextResponse(text, headers=ignored_header(request))
