"""The papers of ``benchmarks.papers``: every experiment runs, and the documents say what the results are."""

import pytest
from benchmarks.papers import pages, records, runner
from benchmarks.papers.experiment import LEVELS, MODULES, load, settings

NAMES = [module.rpartition(".")[2] for module in MODULES]


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_every_experiment_runs_on_a_few_made_rows(module, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    failures = runner.run([module], "smoke", None, tmp_path, apart=False)
    assert failures == 0, capsys.readouterr().err
    pages.write([module], tmp_path, tmp_path / "docs")
    for experiment in load(module).experiments:
        drawn = (tmp_path / "docs" / "papers" / load(module).name / f"{experiment.name}.png").exists()
        assert drawn == (experiment.draw is not None), experiment.name


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_declarations_are_whole(module):
    paper = load(module)
    assert paper.name == module.rpartition(".")[2]
    assert len({one.name for one in paper.experiments}) == len(paper.experiments)
    for experiment in paper.experiments:
        shown = {column.key for column in experiment.columns}
        keys = [row.key for row in experiment.rows]
        assert len(set(keys)) == len(keys), experiment.name
        for row in experiment.rows:
            assert set(row.paper) <= shown, row.key
            assert row.lacks or any(settings(experiment, row, level) for level in LEVELS[1:]), row.key


def test_documents_are_up_to_date_with_the_results():
    for name, text in pages.texts(MODULES, records.RESULTS).items():
        path = records.ROOT / "docs" / name
        assert path.read_text(encoding="utf-8") == text, f"run: python -m benchmarks.papers --write ({name})"
