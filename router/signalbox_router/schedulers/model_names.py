"""Decides which model has which names: its own, its adapters', and those that the router gives."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from signalbox_router.prompt.served_model import ServedModel


class NamedModels(NamedTuple):
    """The models that have a name, and the model of each name."""

    models: tuple[ServedModel, ...]
    by_name: dict[str, ServedModel]
    refusals: tuple[str, ...]
    """Messages of what is not served, because another model has its name."""


def replicas_merged(offered: Iterable[ServedModel]) -> list[ServedModel]:
    """Returns each model once, with the longest window and all adapters of its schedulers."""
    groups: list[list[ServedModel]] = []
    for one in offered:
        group = next((group for group in groups if group[0] == one), None)
        if group is None:
            groups.append(group := [])
        group.append(one)
    return [_merged(group) for group in groups]


def _merged(replicas: Sequence[ServedModel]) -> ServedModel:
    adapters = {one.name: one for model in reversed(replicas) for one in model.adapters}
    texts = dict.fromkeys(text for model in replicas for text in model.started_as)
    return replace(
        max(replicas, key=lambda model: model.window),
        adapters=tuple(adapters[name] for name in sorted(adapters)),
        started_as=tuple(texts),
    )


def without_shared_texts(models: Sequence[ServedModel]) -> list[ServedModel]:
    """Returns the models without the texts that named several of them on command lines."""
    counts = Counter(text for model in models for text in model.started_as)
    return [
        replace(model, started_as=tuple(text for text in model.started_as if counts[text] == 1))
        for model in models
    ]


def name_models(
    models: Sequence[ServedModel],
    *,
    before: Mapping[str, ServedModel],
    given: Sequence[str],
    lost: Sequence[ServedModel],
) -> NamedModels:
    """Gives each name to one model; a name stays with its model while that has it.

    Args:
        models: each model once, the first ones first.
        before: the model of each name so far.
        given: names that the router gives to a model beside its own.
        lost: models that no scheduler serves now.
    """
    owners = _kept(models, before)
    refusals = _claim_own_names(models, owners)
    named = [model for model in models if owners[model.name] is model]
    refusals += _claim_adapters(named, owners)
    namesake, refusal = _namesake(named, given, lost)
    refusals += [refusal] if refusal else []
    aliases = tuple(name for name in given if name not in owners)
    taken = owners.keys() | set(aliases)
    complete = {
        model.name: replace(
            model,
            aliases=aliases if model is namesake else (),
            adapters=tuple(one for one in model.adapters if owners[one.name] is model),
            started_as=tuple(text for text in model.started_as if text not in taken),
        )
        for model in named
    }
    by_name = {name: complete[owner.name] for name, owner in owners.items()}
    by_name |= {text: model for model in complete.values() for text in model.started_as}
    if namesake is not None:
        by_name |= dict.fromkeys(aliases, complete[namesake.name])
    return NamedModels(tuple(complete.values()), by_name, tuple(refusals))


def _claim_own_names(models: Sequence[ServedModel], owners: dict[str, ServedModel]) -> list[str]:
    """Adds the models' own names; returns why some models cannot have theirs."""
    return [
        _refusal(model, owner)
        for model in models
        if (owner := owners.setdefault(model.name, model)) is not model
    ]


def _claim_adapters(models: Sequence[ServedModel], owners: dict[str, ServedModel]) -> list[str]:
    """Adds the adapters' names; returns why some adapters cannot have theirs."""
    return [
        f"the adapter {adapter.name!r} of model {model.name!r} is not served: model {owner.name!r}"
        " has that name"
        for model in models
        for adapter in model.adapters
        if (owner := owners.setdefault(adapter.name, model)) is not model
    ]


def _kept(
    models: Sequence[ServedModel], before: Mapping[str, ServedModel]
) -> dict[str, ServedModel]:
    """Returns the models of the names that they had and still have."""
    kept = {}
    for name, owner in before.items():
        for model in models:
            if model == owner and (name == model.name or model.adapter(name) is not None):
                kept[name] = model
    return kept


def _namesake(
    models: Sequence[ServedModel], given: Sequence[str], lost: Sequence[ServedModel]
) -> tuple[ServedModel | None, str]:
    """Returns the model that has the given names, or None and why no model has them.

    It is the one whose own name is among them, or the only one.
    """
    if not given or not models:
        return None, ""
    known = [*models, *lost]
    own = [model for model in known if model.name in given]
    if len(own) > 1:
        names = " and ".join(repr(model.name) for model in own)
        return None, f"served_model_name has the names of {names}; give only one model other names"
    found = own or known
    if len(found) > 1:
        return None, (
            f"{', '.join(given)} of served_model_name may mean several models; add the name of the"
            " one that is meant"
        )
    return (found[0] if found[0] in models else None), ""


def _refusal(model: ServedModel, owner: ServedModel) -> str:
    if owner.name != model.name:
        return f"model {model.name!r} is not served: an adapter of {owner.name!r} has that name"
    differing = next(
        entry.name
        for entry in fields(ServedModel)
        if entry.compare and getattr(model, entry.name) != getattr(owner, entry.name)
    )
    return (
        f"another model of the name {model.name!r} is not served while the first is: its"
        f" {differing} is another"
    )
