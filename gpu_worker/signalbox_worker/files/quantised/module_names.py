"""Says which modules a checkpoint's configuration means: by name, by class, or by `re:`.

A name may be that of a module into which a model fuses several (`qkv_proj`, `gate_up_proj`); it
then means each of them.
"""

import re
from collections.abc import Iterable

from signalbox_worker.config import ModelError

_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
_EXPRESSION = "re:"
_OF_EMBEDDINGS = ("embed_tokens", "wte")


def best_match(module: str, targets: Iterable[str]) -> int | None:
    """Returns how well the best of some targets matches: 0 by name, 1 by `re:`, 2 by class.

    None stands for none that matches.
    """
    matches = [match for target in targets if (match := _match(target, module)) is not None]
    return min(matches, default=None)


def _match(target: str, module: str) -> int | None:
    parent, dot, own = module.rpartition(".")
    fused = _FUSED.get(own)
    names = [module]
    if fused is not None and fused in target:  # else `.*v_proj` would mean Q of qkv_proj, too
        names.append(f"{parent}{dot}{fused}")
    if target.startswith(_EXPRESSION):
        pattern = expression(target.removeprefix(_EXPRESSION))
        return 1 if any(map(pattern.match, names)) else None
    if target in names:
        return 0
    return 2 if target == ("Embedding" if own in _OF_EMBEDDINGS else "Linear") else None


def expression(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern of a configuration. Raises ModelError for what is none."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(
            f"quantization_config has {pattern[:80]!r}, which is no regular expression ({error});"
            " fetch it again"
        ) from None
