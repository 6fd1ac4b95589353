"""docs/reference/clients.md lists what `make test-clients` runs, at the versions it installs."""

from tests.third_party.run import CLIENTS, ENVIRONMENTS, HERE, MARKER, PAGE, table


def test_the_page_has_each_client_at_its_pinned_version() -> None:
    _, marker, written = PAGE.read_text(encoding="utf-8").partition(MARKER)
    assert marker
    assert written.strip() == table(dict.fromkeys(CLIENTS, "")).strip(), (
        "make test-clients CLIENTS=--write-docs writes the table again"
    )


SUFFIXES = {".py", ".mjs", ".rb"}


def test_each_script_is_run() -> None:
    scripts = {path.name for path in (HERE / "clients").iterdir() if path.suffix in SUFFIXES}
    assert scripts == {client.script for client in CLIENTS} | {
        "demo.py",
        "demo.mjs",
        "demo_values.mjs",
        "inference.mjs",
        "browser.mjs",
        "demo_pooling.py",
        "demo_tools.py",
    }


def test_each_environment_is_used() -> None:
    found = {path.stem for path in ENVIRONMENTS.iterdir()}
    assert found == {client.environment for client in CLIENTS} | {"console"}  # of tests/console
