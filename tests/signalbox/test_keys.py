"""`signalbox keys create`: what it prints is what the router takes."""

from pathlib import Path

from router.keys import KeyRing
from tests.signalbox.stacks import serve, signalbox


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


def test_serve_asks_for_a_key_that_no_list_of_processes_shows(tmp_path: Path) -> None:
    key = "sk-do-not-show"
    with serve(tmp_path / "log", "--simulate", variables={"SIGNALBOX_API_KEY": key}) as stack:
        commands = [child.cmdline() for child in stack.children().values()]
        assert len(commands) == 3
        assert not any(key in word for words in commands for word in words)
        asked = ("generate", "hello", "--max-tokens=3", "--router", stack.address)
        assert "UNAUTHENTICATED" in signalbox(*asked).stderr
        done = signalbox(*asked, "--api-key", key)
        assert done.returncode == 0, done.stderr
        assert stack.stop() == 0
    assert key not in stack.log.read_text()
