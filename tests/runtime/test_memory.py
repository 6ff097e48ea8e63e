"""What is free is told by the system, by its container, or assumed."""

from __future__ import annotations

import pytest

from gigagp.runtime import memory

MEMINFO, LIMIT, USED = "/proc/meminfo", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"
AVAILABLE = "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that makes a machine with some of the files that tell its memory."""

    def of(files: dict[str, str]) -> None:
        for name, content in files.items():
            path = tmp_path / name.removeprefix("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        monkeypatch.setattr(memory, "Path", lambda name: tmp_path / name.removeprefix("/"))

    return of


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({MEMINFO: AVAILABLE}, 5000 * 1024),
        ({MEMINFO: AVAILABLE, LIMIT: "max\n", USED: "7"}, 5000 * 1024),
        ({MEMINFO: AVAILABLE, LIMIT: "3000", USED: "1000\n"}, 2000),
        ({MEMINFO: AVAILABLE, LIMIT: "3000", USED: "4000"}, 0),
        ({MEMINFO: AVAILABLE, LIMIT: "3000"}, 5000 * 1024),
        ({MEMINFO: "nothing known"}, 4 * 2**30),
    ],
)
def test_what_a_machine_tells(machine, files, free):
    machine(files)
    assert memory.free_bytes() == free


def test_without_files_it_is_half_of_the_memory_or_a_laptops(machine, monkeypatch):
    machine({})
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(memory.os, "sysconf", sizes.__getitem__)
    assert memory.free_bytes() == 2_048_000
    monkeypatch.setattr(memory.os, "sysconf_names", {})
    assert memory.free_bytes() == 4 * 2**30
