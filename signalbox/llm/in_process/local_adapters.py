"""The LoRA adapters of an engine in this process, which are loaded when a request names them."""

import threading
from pathlib import Path

from signalbox.llm.in_process.local_worker import LocalWorker
from signalbox.llm.requests.lora_request import LoRARequest
from signalbox_contract.model import Adapter
from signalbox_scheduler.workers.cluster import Cluster


class LocalAdapters:
    """Loads adapters; safe from any thread."""

    def __init__(self, worker: LocalWorker, cluster: Cluster, *, is_enabled: bool) -> None:
        self._worker, self._cluster, self._is_enabled = worker, cluster, is_enabled
        self._lock = threading.Lock()
        self._known: dict[int, LoRARequest] = {}
        self._loaded = {one.name: one for one in worker.model.adapters}

    @property
    def known_ids(self) -> set[int]:
        """Numbers of the adapters that requests have named."""
        return set(self._known)

    def sha256(self, request: LoRARequest | None) -> str:
        """Returns the adapter of a request, loaded; "" is the base model. Raises ValueError."""
        if request is None:
            return ""
        if not isinstance(request, LoRARequest):
            raise TypeError(f"lora_request is a {type(request).__name__}; give LoRARequest")
        with self._lock:
            adapter = self._find(request) or self._load(request)
            self._known[request.lora_int_id] = request
            return adapter.sha256

    def _find(self, request: LoRARequest) -> Adapter | None:
        known = self._known.get(request.lora_int_id, request)
        if known != request:
            raise ValueError(
                f"lora_int_id {request.lora_int_id} is that of the adapter {known.lora_name} in"
                f" {known.lora_path}; give each adapter a number of its own"
            )
        loaded = self._loaded.get(request.lora_name)
        if loaded is not None and Path(loaded.path) != Path(request.lora_path):
            raise ValueError(
                f"the adapter {request.lora_name} is loaded from {loaded.path}; give the one in"
                f" {request.lora_path} another name"
            )
        return loaded

    def _load(self, request: LoRARequest) -> Adapter:
        if not self._is_enabled:
            raise ValueError("lora_request takes an engine made with enable_lora=True")
        adapter = self._worker.load_adapter(request.lora_name, request.lora_path)
        self._loaded[adapter.name] = adapter
        self._cluster.set_adapters(self._loaded.values())
        return adapter
