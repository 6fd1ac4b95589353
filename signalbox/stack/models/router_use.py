"""The requests of each router for each model, as the routers report them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class RouterUse:
    """One router's requests, as it has said last."""

    num_live: Mapping[str, int] = field(default_factory=dict)
    """Requests at the schedulers, by model."""
    revision: int = 0
    """State of the models that it has acted on."""


class RouterUses:
    """All routers that hold a stream."""

    def __init__(self) -> None:
        self._routers: dict[RouterUse, None] = {}

    def __len__(self) -> int:
        return len(self._routers)

    def join(self) -> RouterUse:
        router = RouterUse()
        self._routers[router] = None
        return router

    def leave(self, router: RouterUse) -> None:
        del self._routers[router]

    def num_live(self, model: str) -> int:
        return sum(router.num_live.get(model, 0) for router in self._routers)

    def have_left(self, model: str, *, since: int) -> bool:
        """Returns whether no router has requests of a model, and each knows the state of `since`,
        after which it sends none."""
        return all(
            router.revision >= since and not router.num_live.get(model) for router in self._routers
        )
