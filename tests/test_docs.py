"""The Python blocks of README.md and docs/ run, each page from top to bottom in one namespace.

A block is left out when its fence says so, with the reason: ```python skip: needs a table of a million rows
The reason may be a package: ```python skip: needs pykrige is left out where that package is not installed.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from pathlib import Path

import pytest

from gigagp.inference import registry

ROOT = Path(__file__).resolve().parents[1]
#: The site's copy of the changelog is left out: it is there only once the site has been built.
DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "changelog.md"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
#: Pages of integrations, with the packages that they need, and the extra that installs these.
OPTIONAL = {
    "botorch": (["botorch"], "botorch"),
    "maps": (["geopandas", "rioxarray", "xarray"], "geo"),
    "deployment": (["onnx", "onnxruntime"], "onnx"),
    "gpytorch": (["gpytorch"], "test"),
    "kriging": (["geopandas", "rioxarray", "xarray"], "geo"),
}
FENCE = re.compile(r"^```(\w*)(.*)$")
PACKAGE = re.compile(r"skip: needs ([a-z]+)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(text: str) -> list[tuple[int, str, str]]:
    """Return (first line, rest of the opening fence, code) of every Python block."""
    found = []
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if fence and opened is None:
            opened = (number + 1, fence.group(1), fence.group(2).strip())
            code: list[str] = []
        elif fence and opened is not None:
            if opened[1] == "python":
                found.append((opened[0], opened[2], "\n".join(code)))
            opened = None
        elif opened is not None:
            code.append(line)
    assert opened is None, f"the fence before line {opened[0]} is not closed"
    return found


@pytest.mark.slow
@pytest.mark.few(3)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    needed, extra = OPTIONAL.get(page.stem, ([], ""))
    for package in needed:
        pytest.importorskip(package, reason=f"{page.name} needs the extra {extra}")
    monkeypatch.chdir(tmp_path)  # pages may write files
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))  # and register an inference
    names: dict[str, object] = {"__name__": "__page__"}
    for line, mark, code in blocks(page.read_text(encoding="utf-8")):
        package = PACKAGE.fullmatch(mark)
        if package and importlib.util.find_spec(package[1]) is None:
            continue
        if mark and not package:
            reason = re.fullmatch(r"skip: .*(table|shell|weights|GPU).*", mark)
            assert reason, f"{page.name}:{line}: {mark!r} is no reason to skip"
            continue
        with warnings.catch_warnings():  # a page may change the filters; the next test does not see it
            # The empty lines in front make a traceback show the page's own line numbers.
            # A page does not inherit this file's future imports.
            exec(compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def headings(text: str) -> set[str]:
    """Return the addresses of the headings of a page, as GitHub and MyST make them."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^#+ (.*)$", outside, flags=re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).lower() for line in lines]
    return {re.sub(r"[^\w\- ]", "", line).strip().replace(" ", "-") for line in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_to_one(page):
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    texts = {name: (page.parent / name if name else page).read_text(encoding="utf-8") for name, _ in links}
    assert [link for link in links if link[1] not in headings(texts[link[0]])] == []


def test_headings_are_found():
    text = "# A b\n```bash\n# no\n```\n## Is `x` *it*, [there](a.md)?\n"
    assert headings(text) == {"a-b", "is-x-it-there"}


def test_the_runner_sees_an_error(tmp_path, monkeypatch):
    page = ROOT / "page.md"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "text\n```python\na = 1\n```\n```python\na / 0\n```\n")
    with pytest.raises(ZeroDivisionError):
        test_the_code_of_a_page_runs(page, tmp_path, monkeypatch)


def test_blocks_are_found():
    text = "```bash\nls\n```\n```python skip: needs a big table\nx\n```\n\n```python\ny = 1\n\nz\n```\n"
    assert blocks(text) == [(5, "skip: needs a big table", "x"), (9, "", "y = 1\n\nz")]
