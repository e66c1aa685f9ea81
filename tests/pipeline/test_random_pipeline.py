"""Random tables and transactions through the whole pipeline: what is derived is what Postgres has.

Each seed makes one case (tests/support/random_cases.py), which is run as any other: once through
Delta and a rebuild, once from the log with capture killed between items. By hand:

    CDC_RANDOM_SEED=7 CDC_RANDOM_EXAMPLES=50 pytest --full -s tests/pipeline/test_random_pipeline.py

``CDC_RANDOM_TABLES`` and ``CDC_RANDOM_TRANSACTIONS`` make cases smaller or larger. A case that
fails is there as a file, from which lines can be taken by hand: ``python -m tests.cases FILE``.
"""

import os
import random

import pytest

from tests.cases.runner import run_cases
from tests.support.random_cases import Size, write_case

EXAMPLES = 12


def number(name, otherwise):
    return int(os.environ.get(name) or otherwise)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_random_tables_are_derived_as_postgres_has_them(stack, spark, tmp_path):
    first = number("CDC_RANDOM_SEED", random.randrange(10**6))
    count = number("CDC_RANDOM_EXAMPLES", EXAMPLES)
    print(f"CDC_RANDOM_SEED={first} CDC_RANDOM_EXAMPLES={count}")
    files = []
    for seed in range(first, first + count):
        size = Size(
            tables=number("CDC_RANDOM_TABLES", 3),
            transactions=number("CDC_RANDOM_TRANSACTIONS", 12),
            altering=seed % 2 == 1,
            two_phase=seed % 4 == 0,
        )
        files.append(write_case(tmp_path / f"random-{seed}.yaml", stack.postgres, seed, size))
    folder = tmp_path / "run"
    folder.mkdir()
    outcomes = run_cases(files, stack, spark, folder, print)
    assert len(outcomes) == count
    failed = [outcome for outcome in outcomes if not outcome.passed]
    told = "\n".join(map(str, failed))
    assert not failed, f"{told}\nthe cases, by seed: {tmp_path}"
