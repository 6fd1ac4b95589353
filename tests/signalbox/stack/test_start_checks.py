"""Files that a stack cannot use are refused before any of its processes starts."""

import pytest

from router.keys.api_keys import KeyFileError
from rpc.transport.tls import TlsError
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack import local_stack
from signalbox.stack.local_stack import LocalStack


@pytest.mark.parametrize(
    ("flags", "error", "named"),
    [
        ({"chat_template": "no-such-template"}, ValueError, "no-such-template"),
        ({"api_keys": "nowhere.yaml"}, KeyFileError, "nowhere.yaml"),
        ({"tls_cert": "nowhere.pem", "tls_key": "nowhere.key"}, TlsError, "nowhere.pem"),
    ],
)
def test_a_file_that_cannot_be_used_starts_nothing(
    flags: dict[str, str], error: type[Exception], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(local_stack, "start", lambda name, *_, **__: started.append(name))
    ports = {"grpc_port": 0, "http_port": 0}
    settings = ServeSettings.model_validate({"simulate": True, **ports, **flags})
    stack = LocalStack(settings)
    with pytest.raises(error, match=named):
        stack.launch()
    assert not started
