"""`signalbox keys create`: what it prints is what the router takes."""

from pathlib import Path

from router.keys import KeyRing
from tests.signalbox.stacks import signalbox


def test_a_created_key_is_let_in_and_its_file_does_not_hold_it(tmp_path: Path) -> None:
    done = signalbox("keys", "create", "blue", "--models", "a,b", "--tokens-per-minute", "60")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "keys.yaml"
    path.write_text(done.stdout)
    key = done.stderr.split()[-1]
    assert key not in done.stdout
    found = KeyRing(str(path)).authenticate([("authorization", f"Bearer {key}")])
    assert (found.name, found.tenant, found.tokens_per_minute) == ("blue", "blue", 60)
    assert found.models == {"a", "b"}
