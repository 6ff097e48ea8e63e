from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gigagp
from gigagp.files import replacing


def test_the_new_file_replaces_the_old(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        assert temporary.suffix == ".txt"
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_keeps_the_old_file(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("old")

    def write_half():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_process_keeps_the_old_file(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("old")
    code = (
        "import os, signal, sys\nfrom gigagp.files import replacing\n"
        "with replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, check=False)
    assert result.returncode != 0
    assert path.read_text() == "old"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with replacing(tmp_path / "link.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"), replacing(tmp_path):
        pass


def test_the_file_has_the_permissions_of_any_new_file(tmp_path):
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    plain.write_text("x")
    with replacing(ours) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # as safetensors does
        os.close(descriptor)
    assert ours.stat().st_mode == plain.stat().st_mode
