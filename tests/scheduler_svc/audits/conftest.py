import pytest

from tests.scheduler_svc.audits.auditing import Auditing


@pytest.fixture
def auditing(monkeypatch: pytest.MonkeyPatch) -> Auditing:
    return Auditing(monkeypatch)
