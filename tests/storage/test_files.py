from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gigagp
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.estimators.saving.persistence import load_state, save_state
from gigagp.storage import files
from gigagp.storage.files import check_folder, replacing


def test_the_new_file_replaces_the_old(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("old", encoding="utf-8")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_keeps_the_old_file(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("old", encoding="utf-8")

    def write_half():
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_process_keeps_the_old_file(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("old", encoding="utf-8")
    code = (
        "import os, signal, sys\nfrom gigagp.storage.files import replacing\n"
        "with replacing(sys.argv[1]) as file:\n"
        "    file.write(b'half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, check=False)
    assert result.returncode != 0
    assert path.read_text(encoding="utf-8") == "old"
    if hasattr(os, "O_TMPFILE"):
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(files.fcntl is None, reason="a writer that lives is known by its lock")
def test_temporary_files_of_dead_writers_are_removed_and_those_of_living_ones_stay(tmp_path, monkeypatch):
    path, other = tmp_path / "f.txt", tmp_path / "g.txt"
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)  # as on systems without nameless files
    for number in range(3):
        (tmp_path / f".f.txt.writing-{number}").write_text("half", encoding="utf-8")
    (tmp_path / ".g.txt.writing-0").write_text("of another file", encoding="utf-8")
    with replacing(path) as file:
        file.write(b"new")
        assert len(list(tmp_path.glob(".f.txt.writing-*"))) == 1
        with replacing(path) as second:  # another writer of the same file must not remove this one
            second.write(b"second")
        assert len(list(tmp_path.glob(".f.txt.writing-*"))) == 1
    assert path.read_text(encoding="utf-8") == "new"
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".g.txt.writing-0", path]
    with replacing(other) as file:
        file.write(b"new")
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.txt").write_text("old", encoding="utf-8")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with replacing(tmp_path / "link.txt") as file:
        file.write(b"new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text(encoding="utf-8") == "new"


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"), replacing(tmp_path):
        pass


@pytest.mark.parametrize("nameless", [True, False])
def test_a_new_file_honours_the_umask_and_an_old_one_keeps_its_mode(tmp_path, monkeypatch, nameless):
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    for mask in (0o022, 0o027, 0o002, 0o077):
        path, old = tmp_path / f"new-{mask}", tmp_path / f"old-{mask}"
        old.write_text("old", encoding="utf-8")
        old.chmod(0o640)
        before = os.umask(mask)
        try:
            for one in (path, old):
                with replacing(one) as file:
                    file.write(b"new")
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
        assert stat.S_IMODE(old.stat().st_mode) == 0o640


def specials(folder):
    """Return paths that are not regular files, by the name of their kind."""
    os.mkfifo(folder / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    place = os.getcwd()
    os.chdir(folder)  # socket names must be short
    listener.bind("socket")
    os.chdir(place)
    listener.close()
    (folder / "one").symlink_to(folder / "two")
    (folder / "two").symlink_to(folder / "one")
    (folder / "device").symlink_to("/dev/null")
    (folder / "folder").mkdir()
    found = {"a pipe": "pipe", "a socket": "socket", "symbolic links": "one", "character device": "device"}
    return {**{what: folder / name for what, name in found.items()}, "a folder": folder / "folder"}


@pytest.mark.skipif(os.name == "nt", reason="files of POSIX")
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path):
    for what, path in specials(tmp_path).items():
        before = sorted((entry.name, entry.lstat().st_mode, entry.lstat().st_ino) for entry in tmp_path.iterdir())
        with pytest.raises(OSError, match=what), replacing(path):
            pytest.fail("it was opened")
        with pytest.raises(InvalidInputError, match=what):
            check_folder(path)
        with pytest.raises(ModelFileError, match=what):
            save_state(path, "X", {}, {})
        with pytest.raises(ModelFileError):
            load_state(path)
        after = sorted((entry.name, entry.lstat().st_mode, entry.lstat().st_ino) for entry in tmp_path.iterdir())
        assert after == before
    with pytest.raises(OSError, match="NUL"), replacing("a\0b"):
        pass


def test_a_link_to_nothing_makes_the_file_that_it_names(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == "new"


def test_kills_at_any_moment_leave_nothing_behind(tmp_path):
    """Kills come at random points of a loop of saves, which replace one file and create others."""
    if not hasattr(os, "O_TMPFILE"):
        pytest.skip("a file without a name is Linux'")
    code = (
        "import sys\nfrom gigagp.storage.files import replacing\n"
        "print('ready', flush=True)\n"
        "for number in range(10**9):\n"
        "    for name in (sys.argv[1] + '/model', f'{sys.argv[1]}/new-{number % 5}'):\n"
        "        with replacing(name) as file:\n"
        "            file.write(b'x' * 100_000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1])}
    for kill in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.003 * kill)
        process.kill()
        process.wait()
        process.stdout.close()
        whole = [entry.stat().st_size for entry in tmp_path.iterdir() if not entry.name.startswith(".")]
        assert set(whole) <= {100_000}
    for name in ("model", *(f"new-{number}" for number in range(5))):
        with replacing(tmp_path / name) as file:  # the next write removes a file with a temporary name
            file.write(b"")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("absent", ["nameless files", "locks", "modes"])
def test_where_the_system_lacks_something_files_are_still_whole_or_absent(tmp_path, monkeypatch, absent):
    if absent != "modes":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    if absent == "locks":  # Windows
        monkeypatch.setattr(files, "fcntl", None)
    if absent == "modes":
        monkeypatch.delattr(os, "fchmod", raising=False)
    path = tmp_path / "f"
    for content in (b"old", b"new"):
        with replacing(path) as file:
            file.write(content)
        assert path.read_bytes() == content

    def replace(*_):
        raise PermissionError("another program has it open")

    def write():
        with replacing(path) as file:
            file.write(b"half")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(PermissionError, match="another program"):
        write()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_disk_that_cannot_flush_fails_and_one_that_need_not_does_not(tmp_path, monkeypatch, number, fails):
    def fsync(descriptor):
        raise OSError(number, "no flush")

    def write():
        with replacing(tmp_path / "f") as file:
            file.write(b"new")

    monkeypatch.setattr(os, "fsync", fsync)
    if fails:
        with pytest.raises(OSError, match="no flush"):
            write()
        assert list(tmp_path.iterdir()) == []
    else:
        write()
        assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("name", "words"), [("a\0b", "NUL character"), ("", "a file name is needed"), (3, "path must")]
)
def test_names_of_no_file_are_refused(name, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=words):
        check_folder(name)
