"""The LoRA adapters of an engine in this process, which are loaded when a request names them."""

import threading
from pathlib import Path

from scheduler_svc.cluster import Cluster
from signalbox.llm.in_process.local_worker import LocalWorker
from signalbox.llm.requests.lora_request import LoRARequest


class LocalAdapters:
    """Loads adapters; safe from any thread."""

    def __init__(self, worker: LocalWorker, cluster: Cluster, *, is_enabled: bool) -> None:
        self._worker, self._cluster, self._is_enabled = worker, cluster, is_enabled
        self._lock = threading.Lock()
        self._known: dict[int, LoRARequest] = {}
        self._sha256 = {one.name: one.sha256 for one in worker.model.adapters}
        self._paths = {one.name: one.path for one in worker.model.adapters}

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
            return self._find(request) or self._load(request)

    def _find(self, request: LoRARequest) -> str | None:
        known = self._known.setdefault(request.lora_int_id, request)
        if known != request:
            raise ValueError(
                f"lora_int_id {request.lora_int_id} is that of the adapter {known.lora_name} in"
                f" {known.lora_path}; give each adapter a number of its own"
            )
        path = self._paths.get(request.lora_name, request.lora_path)
        if Path(path) != Path(request.lora_path):
            del self._known[request.lora_int_id]
            raise ValueError(
                f"the adapter {request.lora_name} is loaded from {path}; give the one in"
                f" {request.lora_path} another name"
            )
        return self._sha256.get(request.lora_name)

    def _load(self, request: LoRARequest) -> str:
        try:
            if not self._is_enabled:
                raise ValueError("lora_request takes an engine made with enable_lora=True")
            adapter = self._worker.load_adapter(request.lora_name, request.lora_path)
        except BaseException:
            del self._known[request.lora_int_id]
            raise
        loaded = self._cluster.model.adapters if self._cluster.model else ()
        self._cluster.set_adapters((*loaded, adapter))
        self._sha256[adapter.name] = adapter.sha256
        self._paths[adapter.name] = request.lora_path
        return adapter.sha256
