"""The models that the schedulers serve, and the one that a request's `model` names.

`Schedulers` updates them; all others read. Schedulers of one model are replicas. A name belongs to
one model for as long as a scheduler serves it: a model or an adapter that comes later with the same
name is not served, and the log says so.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from signalbox_contract.errors import InvalidArgument, NotFound, RpcError, Unavailable
from signalbox_contract.model import Adapter
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.launcher.launched_models import (
    LaunchedModel,
    LaunchedModels,
    NotLoaded,
)
from signalbox_router.schedulers.model_names import (
    name_models,
    replicas_merged,
    without_shared_texts,
)

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""Seconds after which clients are told to retry while no scheduler serves."""
MAX_MODEL_NAME_CHARS = 100
"""Characters of the name in a request that an error message or a span repeats."""

GENERATING = frozenset({"generate"})
EMBEDDING, CLASSIFYING = frozenset({"embed"}), frozenset({"classify"})
TOKEN_EMBEDDING = EMBEDDING | {"token_embed"}
POOLING = TOKEN_EMBEDDING | CLASSIFYING
"""Tasks of the models that can answer a kind of call."""
ANY = GENERATING | POOLING


class ServedModels:
    """Maps names to models. A model is the same object until the next update."""

    def __init__(
        self,
        given_names: tuple[str, ...] = (),
        *,
        absence_of: Callable[[ServedModel | None], str] = lambda _: "",
        launched: LaunchedModels | None = None,
    ) -> None:
        """Makes a map without models.

        Args:
            given_names: names that requests may use for a model beside its own.
            absence_of: returns why the model is not served any more, or why none is, in a
                scheduler's words; empty if no scheduler says anything.
            launched: models that are loaded when a request names them.
        """
        self._given_names = tuple(dict.fromkeys(given_names))
        self._absence_of = absence_of
        self._launched = launched or LaunchedModels()
        self._served: tuple[ServedModel, ...] = ()
        self._lost: tuple[ServedModel, ...] = ()
        self._by_name: Mapping[str, ServedModel] = {}
        self._refusals: Sequence[str] = ()
        self._num_silent = 0

    def update(
        self,
        offered: Iterable[ServedModel],
        lost: Iterable[ServedModel] = (),
        *,
        num_silent: int = 0,
    ) -> None:
        """Takes over what the schedulers serve.

        Args:
            offered: the model of each scheduler that serves one.
            lost: the last model of each other scheduler that has served one.
            num_silent: schedulers that have not served a model yet.
        """
        models = replicas_merged(offered)
        names = {model.name for model in models}
        gone = [one for one in replicas_merged(lost) if one.name not in names]
        known = without_shared_texts([*models, *gone])
        models, gone = known[: len(models)], known[len(models) :]
        named = name_models(models, before=self._by_name, given=self._given_names, lost=gone)
        for refusal in named.refusals:
            if refusal not in self._refusals:
                logger.error(refusal)
        self._served, self._by_name, self._refusals = named
        self._lost, self._num_silent = tuple(gone), num_silent

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """Models that a scheduler serves, in the order of the schedulers."""
        return self._served

    def listed(self) -> list[ServedModel | LaunchedModel]:
        """Returns `served` and the models that are not loaded, those of the launcher in its order.

        Raises Unavailable if there are none.
        """
        launched = [self._by_name.get(one.name, one) for one in self._launched.models]
        return [*(one for one in self.all() if one not in launched), *launched]

    def state_of(self, model: ServedModel | LaunchedModel) -> str:
        """Returns what the launcher does with a model; "" for one that it does not know."""
        launched = self._launched.find(model.name)
        return "" if launched is None else str(launched.state)

    def known(self) -> list[ServedModel | LaunchedModel]:
        """Returns the models that are served, those that were, and those that are not loaded."""
        names = {one.name for one in (*self._served, *self._lost)}
        others = [one for one in self._launched.models if one.name not in names]
        return [*self._served, *self._lost, *others]

    @property
    def first(self) -> str:
        """Name of the first model of `listed`; "" if there is none."""
        known = self._launched.models or self._served
        return known[0].name if known else ""

    def all(self) -> tuple[ServedModel, ...]:
        """Returns `served`. Raises Unavailable if no model is, and the launcher has none."""
        if not self._served and not self._launched.models:
            raise self._no_model()
        return self._served

    @property
    def only_name(self) -> str:
        """Name of the served model if no other is known; else empty."""
        return self._served[0].name if self._served and len(self.known()) == 1 else ""

    def of(self, name: str = "", tasks: frozenset[str] = ANY) -> ServedModel:
        """Returns the model of a name; for an empty one, the only model with one of the tasks.

        Where no model has such a task, it is the only model, which refuses what it cannot do.

        Raises NotFound for an unknown name, NotLoaded for a model that the launcher has to load,
        Unavailable if no scheduler serves the model, and InvalidArgument for an empty name that may
        mean several models.
        """
        if not name:
            return self._only(tasks)
        found = self._by_name.get(name)
        if found is None:
            raise self._error_of(name)
        return found

    def knows(self, name: str) -> bool:
        """Returns whether a served model or adapter has this name."""
        return name in self._by_name

    def adapter(self, name: str) -> Adapter | None:
        """Returns the adapter that requests name so."""
        model = self._by_name.get(name)
        return None if model is None else model.adapter(name)

    def only(self, tasks: frozenset[str]) -> ServedModel | None:
        """Returns what `of` does for an empty name; None where it raises."""
        able = self._able(tasks)
        return next((one for one in self._served if [one] == able), None)

    def _only(self, tasks: frozenset[str]) -> ServedModel:
        self.all()
        able = self._able(tasks)
        if len(able) > 1:
            raise InvalidArgument("model", "", _listed([one.name for one in able], "or"))
        return self.of(able[0].name)

    def _able(self, tasks: frozenset[str]) -> list[ServedModel | LaunchedModel]:
        """Returns the models with one of the tasks, lost ones too; all if none has it."""
        known = self.known()
        return [one for one in known if one.task in tasks] or known

    def _error_of(self, name: str) -> RpcError:
        lost = next((one for one in self._lost if one.knows(name)), None)
        launched = self._launched.find(name if lost is None else lost.name)
        if launched is not None and launched.name not in self._by_name:
            return NotLoaded(launched)
        if not self._served and not self._launched.models:
            return self._no_model()
        if lost is not None:
            reason = self._absence_of(lost) or "its scheduler does not answer"
            return Unavailable(f"model {lost.name!r} is not served now: {reason}", RETRY_AFTER_S)
        names = [one.name for one in self.listed()]
        what = (
            f"model {name[:MAX_MODEL_NAME_CHARS]!r} is not served here;"
            f" {_listed(names, 'and')} {'is' if len(names) == 1 else 'are'}"
        )
        if self._num_silent:
            silent = f"{self._num_silent} of the router's schedulers serve no model yet"
            return Unavailable(f"{what}; {silent}", RETRY_AFTER_S)
        return NotFound(what)

    def _no_model(self) -> Unavailable:
        return Unavailable(self._absence_of(None) or "no scheduler answers", RETRY_AFTER_S)


def _listed(names: Sequence[str], word: str) -> str:
    quoted = [repr(name) for name in names]
    return f"{', '.join(quoted[:-1])} {word} {quoted[-1]}" if len(quoted) > 1 else quoted[0]
