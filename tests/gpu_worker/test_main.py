"""What a worker refuses before it loads a model."""

from pathlib import Path

import pytest

from signalbox_rpc.transport.listening_ports import BindError
from signalbox_rpc.transport.tls import TlsError
from signalbox_worker.main import run
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service.worker_settings import WorkerSettings


def never_loads() -> Runner:
    raise AssertionError("the model is loaded")


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"host": "0.0.0.0"}, BindError, "0.0.0.0:0 where anybody who reaches it may call"),
        ({"tls_cert": "gone.pem", "tls_key": "gone.key"}, TlsError, "gone.pem"),
    ],
)
async def test_a_worker_that_may_not_listen_loads_no_model(
    options: dict[str, str], error: type[Exception], told: str, tmp_path: Path
) -> None:
    files = {name: str(tmp_path / of) for name, of in options.items() if name != "host"}
    with pytest.raises(error, match=told):
        await run(never_loads, WorkerSettings(model="any", **{**options, **files}))
