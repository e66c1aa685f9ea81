"""The source-side cases through the whole pipeline: some in every run, all with --full."""

import re
from pathlib import Path

import pytest

from tests.cases.__main__ import OWN
from tests.cases.runner import run_cases

#: Quick ones, of as many kinds as fit into a minute.
SUBSET = frozenset(
    {
        "ddl-rename-column",
        "names-mixed-case-quotes-and-unicode",
        "toast-key-changed-value-not-sent",
    }
)
FILES = {file.stem: file for file in sorted(OWN.glob("*.yaml"))}
#: A case that must fail: what it expects of a row is not what the source has.
BENT = "txn-upsert"


PARAMS = [pytest.param(n, marks=() if n in SUBSET else pytest.mark.full) for n in FILES]


def test_the_subset_is_of_cases_that_are_there():
    assert FILES.keys() >= SUBSET


@pytest.fixture(scope="module")
def outcomes(request, stack, spark, tmp_path_factory):
    """Outcomes of the cases that this run has selected, all run at once; and of the bent one."""
    here = (item for item in request.session.items if item.path == Path(__file__))
    names = (item.callspec.params["name"] for item in here if hasattr(item, "callspec"))
    wanted = [FILES[name] for name in names]
    folder = tmp_path_factory.mktemp("cases")
    text = FILES[BENT].read_text()
    bent, count = re.subn(r'\["2", "b2", "1"\]', '["2", "b2", "2"]', text)
    assert count == 1
    file = folder / "bent.yaml"
    file.write_text(bent.replace(f"id: {BENT}", "id: bent"))
    return {one.name: one for one in run_cases([*wanted, file], stack, spark, folder)}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PARAMS)
def test_case(name, outcomes):
    outcome = outcomes[name]
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.passed, str(outcome)


@pytest.mark.timeout(3600)
def test_a_row_that_differs_fails_wherever_it_is_derived(outcomes):
    problems = outcomes["bent"].problems
    told = {problem.split(" of ")[0] for problem in problems}
    assert told == {"plain: replica", "killed: query"}, problems
    assert all('key ["2"]: n is "1", not "2"' in problem for problem in problems)
