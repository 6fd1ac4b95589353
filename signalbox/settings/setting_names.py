"""Resolves names of settings: of fields, of flags of other servers, and unknown ones."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from signalbox.settings.flag_kinds import Alias, NoEffect, Refused
from signalbox.settings.foreign_flags import FOREIGN_FLAGS, MODEL_FLAG
from signalbox.settings.sources import SettingsError, Source
from signalbox.settings.spelling import did_you_mean
from signalbox_rpc.settings.service_settings import flag_name

Tell = Callable[[str], None]

_WEIGHTS = Refused(remedy="the policy fair counts a generated token as two of a prompt")
EARLIER: Mapping[str, Alias | Refused] = {
    "ageing": Alias(setting="priority_aging_s"),
    "explain_history": Refused(remedy="the last 1,024 requests that have ended are kept"),
    "fair_input_weight": _WEIGHTS,
    "fair_output_weight": _WEIGHTS,
    "metrics_exporter": Refused(
        remedy="let a collector scrape --metrics-port; deploy/otel/collector.yaml does, and names"
        " gen_ai.server.* as OpenTelemetry does"
    ),
    "num_cpu_blocks_override": Refused(remedy="a worker's --swap-space sizes the swap pool"),
    "prefill_spread": Alias(setting="prefill_spread_steps"),
    "record": Alias(setting="recording_path"),
}
"""Settings of earlier versions: those that are gone, and old names, which work for one release."""


def check_known(source: Source, known: Iterable[str]) -> None:
    """Raises SettingsError for a name of no setting and of no flag of another server."""
    for message in unknown_names(source, known).values():
        raise SettingsError(message)


def unknown_names(source: Source, known: Iterable[str]) -> dict[str, str]:
    """Returns each name of a source that is not known, with the message about it."""
    names = {*known, *FOREIGN_FLAGS, *EARLIER}
    return {
        name: f"{source.place}: no setting is called {name}{did_you_mean(name, names)}"
        for name in sorted(source.values)
        if name not in names
    }


def translate(source: Source, fields: Iterable[str], tell: Tell) -> dict[str, Any]:
    """Returns a source's values by the names of fields.

    Args:
        fields: of the command; an alias of any other field is left out.
        tell: called with one line for each flag that has no effect, and each old name.

    Raises SettingsError for a refused flag or value, and for one setting given two values.
    """
    translated: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in source.values.items():
        for setting, ours in _translate(source, name, value, tell).items():
            if name != setting and setting not in fields:
                continue
            if name in EARLIER:
                tell(f"{_shown(source, name)} {old_name(setting)}")
            if setting in names and _is_member(name) and _is_member(names[setting]):
                ours = {**(translated[setting] or {}), **(ours or {})} or None
            elif setting in names and ours == translated[setting]:
                continue
            elif setting in names:
                both = f"{_shown(source, names[setting])} and {_shown(source, name)}"
                raise SettingsError(f"{both} are the same setting; give one of them")
            names[setting] = name
            translated[setting] = ours
    return translated


def _translate(source: Source, name: str, value: Any, tell: Tell) -> Mapping[str, Any]:
    flag = FOREIGN_FLAGS.get(name) or EARLIER.get(name)
    if flag is None:
        return {name: value}
    shown, text = _shown(source, name), _text(value)
    if isinstance(flag, Refused):
        is_spelling = source.kind == "flag" and isinstance(value, str)
        raise SettingsError(f"{value if is_spelling else shown} is not served: {flag.remedy}")
    if isinstance(flag, Alias):
        ours = _converted(flag, shown, value)
        return {flag.setting: (_members(flag, shown, ours) or None) if flag.member else ours}
    if flag.values and text.lower() not in flag.values:
        given = f"{shown} {text}" if not isinstance(value, bool) else _switched(shown, on=value)
        raise SettingsError(f"{given} is not served: {flag.otherwise}")
    if not flag.beside & source.values.keys():
        tell(f"{shown} has no effect: {flag.why}")
    return {}


def old_name(setting: str) -> str:
    """Returns what messages say after the old name of a setting."""
    return f"is an old name, and works for one release; its name is {setting}"


def _is_member(name: str) -> bool:
    flag = FOREIGN_FLAGS.get(name)
    return isinstance(flag, Alias) and bool(flag.member)


def _members(flag: Alias, shown: str, value: Any) -> dict[str, int | float | str]:
    """Returns what the flag sets of a JSON object; nothing for None."""
    if value is None:
        return {}
    if flag.is_text:
        return {flag.member: _text(value)}
    try:
        number = float(value)
        return {flag.member: int(number) if number.is_integer() else number}
    except (ValueError, OverflowError):
        raise SettingsError(f"{shown} is {_text(value)!r}: it is no number") from None


def _converted(flag: Alias, shown: str, value: Any) -> Any:
    if flag.convert is None:
        return flag.values.get(_text(value).lower(), value)
    try:
        return flag.convert(_text(value))
    except ValueError:
        raise SettingsError(f"{shown} is {_text(value)!r}: it is no number") from None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _switched(shown: str, *, on: bool) -> str:
    return shown if on else shown.replace("--", "--no-", 1)


def _shown(source: Source, name: str) -> str:
    """Returns a name for messages: its flag or argument, or its source and name."""
    if source.place:
        return f"{source.place}: {name}"
    return {"model": "MODEL", MODEL_FLAG: "--model"}.get(name) or flag_name(name)


def effect(name: str) -> str:
    """Returns the effect of another server's flag here, as one line of Markdown."""
    flag = FOREIGN_FLAGS[name]
    if isinstance(flag, Alias):
        meaning = f" ({flag.meaning})" if flag.meaning else ""
        setting = "MODEL" if flag.setting == "model" else flag_name(flag.setting)
        return f"`{setting}`{meaning}"
    if isinstance(flag, NoEffect):
        only = " or ".join(f"`{value}`" for value in flag.values)
        limits = f"; any other value than {only} is refused: {flag.otherwise}" if only else ""
        return f"no effect: {flag.why}{limits}"
    return f"refused: {flag.remedy}"
