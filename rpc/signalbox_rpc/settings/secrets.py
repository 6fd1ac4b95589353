"""Types of settings that no message, log line or command line of ours may show."""

from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic.fields import FieldInfo

from signalbox_rpc.settings.quantities import texts


def _texts(value: Any) -> Any:
    """Returns secrets as texts, also of a number, which YAML makes of 123.

    Raises ValueError for an empty one: `--api-key "$KEY"` would leave the port open without KEY.
    """
    if value is None or isinstance(value, tuple):
        return value or ()
    several = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    if not all(one.strip() for one in several):
        raise ValueError("it is empty; leave it out to ask for none")
    return texts(several)


def _checked(secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    for secret in secrets:
        text = secret.get_secret_value()
        if not (text.isascii() and text.isprintable()) or set(text) & set(" ,") or not text:
            raise ValueError("it must be printable ASCII without spaces and commas")
    return secrets


Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_texts), AfterValidator(_checked)]
"""Several secrets, or one text with commas between them."""


def is_secret(field: FieldInfo) -> bool:
    """Returns whether a field's value is one, or several."""
    return SecretStr in (field.annotation, *get_args(field.annotation))


def in_plain_text(value: tuple[SecretStr, ...]) -> str:
    """Returns secrets as one text, for the environment of a child process."""
    return ",".join(secret.get_secret_value() for secret in value)
