"""Claims of papers: every one names an experiment and a heading, and its verdict follows the records."""

import re
from contextlib import suppress

import pytest
from benchmarks.papers import pages, records
from benchmarks.papers.claims import CLAIMS, Claim, verdict
from benchmarks.papers.experiment import MODULES, load

PAPERS = {paper.name: paper for paper in map(load, MODULES)}


def test_every_paper_has_claims_about_its_experiments():
    assert set(CLAIMS) == set(PAPERS)
    for name, claims in CLAIMS.items():
        assert len({claim.text for claim in claims}) == len(claims) >= 7
        assert {claim.experiment for claim in claims} <= {one.name for one in PAPERS[name].experiments}


@pytest.mark.parametrize("name", PAPERS)
def test_links_lead_to_headings(name):
    page = (records.ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8")
    headings = {pages._anchor(line[3:]) for line in page.splitlines() if line.startswith("## ")}
    index = (records.ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    links = re.findall(rf"papers/{name}\.md#([^)]+)\)", index)
    assert len(links) == len(CLAIMS[name])
    assert set(links) <= headings
    assert re.findall(r"\]\(#([^)]+)\)", page) == links


def test_verdicts():
    assert verdict(("", True), smaller=False) == "reproduced"
    assert verdict(("", None), smaller=True) == "in part, on smaller runs"
    assert verdict(("", False), smaller=True) == "not reproduced, on smaller runs"
    assert verdict(None, smaller=True) == "lacks data"


def claim_of(name: str, text: str) -> tuple[Claim, list]:
    claim = next(one for one in CLAIMS[name] if one.text.startswith(text))
    experiment = next(one for one in PAPERS[name].experiments if one.name == claim.experiment)
    return claim, pages.results_of(records.RESULTS, PAPERS[name], experiment)


def test_other_records_give_another_verdict():
    claim, results = claim_of("computation_aware", "The actions of CaGP-CG")
    assert claim.show(results)[1] is True
    turned = [(row, [{**one, "last": -one["last"]} for one in numbers]) for row, numbers in results]
    assert claim.show(turned)[1] is False


@pytest.mark.parametrize("name", PAPERS)
def test_results_without_the_rows_of_a_claim_say_nothing(name):
    for claim in CLAIMS[name]:
        with pytest.raises(LookupError):
            claim.show([])
        experiment = next(one for one in PAPERS[name].experiments if one.name == claim.experiment)
        for part in pages.results_of(records.RESULTS, PAPERS[name], experiment):
            with suppress(LookupError):
                assert claim.show([part])[1] in (True, False, None)
