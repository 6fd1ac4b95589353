"""Chat templates of well-known formats, for models that have none or a wrong one.

Each is a file in `templates`, written for this repository after the format that the model's
makers describe. They refer to special tokens by their names in the tokenizer (bos_token).
"""

from functools import cache
from pathlib import Path

from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.template_renderer import TemplateFailed

_FOLDER = Path(__file__).parent / "templates"


@cache
def known_templates() -> tuple[str, ...]:
    """Returns the names of the templates."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.jinja")))


def load_chat_template(name: str | None) -> str | None:
    """Returns the source of a known template, or of a file; None for None.

    Raises ValueError if `name` is neither, or if the file is empty, or no valid template that
    renders a greeting within the limits.
    """
    if name is None:
        return None
    is_known = name in known_templates()
    path = _FOLDER / f"{name}.jinja" if is_known else Path(name).expanduser()
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(
            f"chat_template is {name!r}: no file that can be read ({reason}), and none of"
            f" {', '.join(known_templates())}"
        ) from None
    if not source.strip():
        raise ValueError(f"chat_template {name} is empty")
    _try_out(source, name)
    return source


def _try_out(source: str, name: str) -> None:
    try:
        template = ChatTemplate(source, special_tokens={})
        template.try_out()
    except TemplateFailed as error:
        raise ValueError(f"chat_template {name} is no valid template: {error}") from None
    template.close()
