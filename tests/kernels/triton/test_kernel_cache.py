"""Which folder Triton may keep kernels in, and what happens where there is none."""

import os
from pathlib import Path

import pytest

from signalbox_kernels.own_folder import UnusableFolder
from signalbox_kernels.triton.kernel_cache import usable_folder, use_kernel_cache


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_folder_is_in_the_users_cache_and_nobody_else_may_enter(tmp_path: Path) -> None:
    folder = use_kernel_cache(None)
    assert folder == tmp_path / "cache" / "signalbox" / "triton"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.environ["TRITON_CACHE_DIR"] == str(folder)
    assert use_kernel_cache(None) == folder


def test_a_setting_comes_before_tritons_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "named"))
    assert use_kernel_cache(None) == tmp_path / "named"
    assert use_kernel_cache(tmp_path / "set") == tmp_path / "set" / "triton"


def test_a_relative_folder_is_one_whatever_the_current_one_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert use_kernel_cache(Path("kept")) == tmp_path / "kept" / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", "named")
    assert use_kernel_cache(None) == tmp_path / "named"


def test_the_home_of_a_user_that_there_is_not_is_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert use_kernel_cache(Path("~no such user/kernels")).is_dir()
    assert "not kept for the next start: ~no such user/kernels: " in caplog.text


def test_a_folder_that_others_may_write_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "open" / "triton"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(UnusableFolder, match="can be written by other users"):
        usable_folder(tmp_path / "open")
    used = use_kernel_cache(tmp_path / "open")
    assert used != folder
    assert used.stat().st_mode & 0o777 == 0o700
    assert "not kept for the next start" in caplog.text


def test_a_folder_of_another_user_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UnusableFolder, match="another user"):
        usable_folder(tmp_path)


def test_a_file_in_its_place_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnusableFolder, match=r"Not a directory|File exists"):
        usable_folder(tmp_path / "file")
