"""The models that the launcher of this machine may start (`signalbox serve A B C`), as it says.

A router without a launcher has an empty table.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from signalbox_contract.errors import Unavailable
from signalbox_contract.model import Adapter
from signalbox_contract.model_state import ModelState

RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedModel:
    """A model that is loaded when a request names it."""

    name: str
    other_names: tuple[str, ...] = ()
    """Other names that requests may use; they are not listed."""
    state: ModelState = ModelState.UNLOADED
    scheduler: str = ""
    """Address of its scheduler, the same at each start."""
    task: str = "generate"
    max_model_len: int = 0
    architecture: str = ""
    reason: str = ""
    """Reason for which it waits, or has failed."""
    held_until: float = 0.0
    """Time on the monotonic clock until which a model that has failed is not started again."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are listed."""
        return (self.name,)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The adapters that are listed: none, before the model is loaded."""
        return ()

    @property
    def window(self) -> int:
        """Tokens of the longest sequence, as far as known."""
        return self.max_model_len

    def adapter(self, name: str) -> Adapter | None:
        """Returns the adapter that requests name so."""
        return next((one for one in self.adapters if one.name == name), None)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Returns all names of the model that a request names."""
        return (self.name, *self.other_names)

    @property
    def is_loaded(self) -> bool:
        return self.state is ModelState.LOADED


class LaunchedModels:
    """The table of the launcher's models, in its order."""

    def __init__(self) -> None:
        self.models: tuple[LaunchedModel, ...] = ()
        self.revision = 0
        """Number of the launcher's message that the table is from."""
        self._by_name: dict[str, LaunchedModel] = {}
        self._by_address: dict[str, LaunchedModel] = {}

    def update(self, models: Iterable[LaunchedModel], *, revision: int) -> None:
        models = tuple(models)
        counts = Counter(name for one in models for name in {*one.names_of("")})
        self.models, self.revision = tuple(_named_alone(one, counts) for one in models), revision
        self._by_name = {name: one for one in self.models for name in one.names_of("")}
        self._by_address = {one.scheduler: one for one in self.models}

    def find(self, name: str) -> LaunchedModel | None:
        """Returns the model of one of its names."""
        return self._by_name.get(name)

    def at(self, address: str) -> LaunchedModel | None:
        """Returns the model of the scheduler at an address."""
        return self._by_address.get(address)

    def away(self, address: str) -> str:
        """Returns why there is no scheduler at an address; "" if there is one, or may be."""
        model = self.at(address)
        if model is None or model.state in (ModelState.LOADED, ModelState.DRAINING):
            return ""
        return f"model {model.name!r} is not loaded"


def _named_alone(model: LaunchedModel, counts: Counter[str]) -> LaunchedModel:
    """Returns a model without the other names that several models have: they mean none."""
    names = tuple(name for name in model.other_names if counts[name] == 1)
    return replace(model, other_names=names)


class NotLoaded(Unavailable):
    """A request names a model that the launcher has to load first."""

    def __init__(self, model: LaunchedModel) -> None:
        self.model = model
        super().__init__(
            f"model {model.name!r} is not loaded now ({model.state}); a request for an answer of it"
            " loads it",
            RETRY_AFTER_S,
        )
