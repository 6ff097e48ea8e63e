"""What is said of the package in several files says the same."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from stress.plants import PLANTS

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = SETTINGS["project"], SETTINGS["tool"]
#: Names that differ between the registries.
CONDA = {"torch": "pytorch"}


def test_a_release_refuses_what_is_no_version():
    script = ROOT / "packaging/release.sh"
    for wrong in ([], ["1.0"], ["v1.0.0"]):
        run = subprocess.run([script, *wrong], capture_output=True, text=True, timeout=60, check=False)
        assert (run.returncode, run.stderr) == (2, "usage: packaging/release.sh MAJOR.MINOR.PATCH\n")


def test_every_fragment_of_the_changelog_has_a_kind():
    """towncrier passes over files whose kind it does not know."""
    kinds = {kind["directory"] for kind in TOOLS["towncrier"]["type"]}
    found = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert [name for name in found if not re.fullmatch(rf"\+[\w-]+\.({'|'.join(kinds)})\.md", name)] == []


def test_the_conda_recipe_has_the_dependencies():
    text = (ROOT / "packaging/conda/recipe.yaml").read_text(encoding="utf-8")
    run = re.search(r"^  run:\n((?:    - .*\n)+)", text, re.MULTILINE).group(1)
    found = {line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()}
    wanted = set()
    for one in PROJECT["dependencies"]:
        name = re.match(r"[a-z-]+", one).group()
        wanted.add(CONDA.get(name, name) + one.removeprefix(name))
    assert found == wanted | {f"python{PROJECT['requires-python']}"}


def test_the_citation_names_the_papers():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    papers = re.findall(r"arxiv\.org/abs/([\d.]+)", (ROOT / "docs/papers.md").read_text(encoding="utf-8"))
    assert len(set(papers)) == 5
    assert [paper for paper in papers if paper not in text] == []


@pytest.mark.parametrize("name", ["summary", "license"])
def test_the_conda_recipe_describes_the_package(name):
    text = (ROOT / "packaging/conda/recipe.yaml").read_text(encoding="utf-8")
    wanted = {"summary": PROJECT["description"], "license": PROJECT["license"]}[name]
    assert f"  {name}: {wanted}\n" in text


def test_the_wheel_has_no_sources_of_the_engine(tmp_path):
    pytest.importorskip("pybind11")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib"]
    subprocess.run([*command, str(tmp_path / "lib")], cwd=ROOT, check=True, capture_output=True, timeout=120)
    installed = {path.relative_to(tmp_path / "lib") for path in (tmp_path / "lib").rglob("*") if path.is_file()}
    assert {Path("gigagp/py.typed"), Path("gigagp/products/native_tiles.py")} <= installed
    assert {path.suffix for path in installed} <= {".py", ".typed", ".so"}


def test_every_planted_fault_is_somewhere():
    faults = tomllib.loads((ROOT / "packaging/mutations.toml").read_text(encoding="utf-8"))
    mutations = faults["mutation"]
    for one in mutations:
        before = (ROOT / one["file"]).read_text(encoding="utf-8")
        after = before.replace(one["text"], one["replacement"])
        assert before.count(one["text"]) == 1, one["name"]
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before)), one["name"]
    assert len({one["name"] for one in mutations}) == len(mutations) == 40
    assert set(faults["plants"]) == set(PLANTS)
    for tests in [*(one["tests"] for one in mutations), *faults["plants"].values()]:
        assert [name for name in tests if not (ROOT / name).exists()] == []


def test_a_package_has_one_lower_bound():
    """`packaging/check_versions.sh oldest` installs them."""
    lowest = runpy.run_path(str(ROOT / "packaging/lowest_versions.py"))["lowest"]
    extras = PROJECT["optional-dependencies"].values()
    found = lowest([*PROJECT["dependencies"], *(one for extra in extras for one in extra)])
    assert found["torch"] == "2.6"
    assert found["triton"] == "3.2"  # behind it is a marker
    assert lowest(["a>=1.0", "a>=1.0,<2", "gigagp[plot]"]) == {"a": "1.0"}
    for wrong in (["a"], ["a<2"], ["a>=1.0", "a>=1.1"]):
        with pytest.raises(ValueError, match="needs a lower bound, the same wherever"):
            lowest(wrong)


def test_every_extra_is_checked():
    uses = runpy.run_path(str(ROOT / "packaging/use_extras.py"))["USES"]
    assert set(uses) == set(PROJECT["optional-dependencies"])
