"""The parts of the benchmarks of loads that compute something."""

import pytest

from tests.benchmarks.__main__ import names
from tests.benchmarks.parts.cores import Costs, on_cores
from tests.benchmarks.parts.peer import parse_runs
from tests.benchmarks.parts.runs import Run, figures, ratio

SAID = """\
# 10:15:01 load average: 0.90, 1.20, 1.10
snapshot threads=1 run 1: startup_to_first_event_s=6.25 n=1000000 first_ts=1764323000000 \
last_ts=1764323025000 span_s=25.000 rows_s=40000 rows_s_second_half=44000 polled_s=25.100 \
cpu_first_s=9.50 cpu_total_s=49.50 cpu_span_s=40.00 broker_cpu_s=5.25 rss_first_mb=400 \
rss_end_mb=900 rss_peak_mb=950 end=1000000 machine_busy_s=49.0 steal_s=0.0 \
busy_less_connect_broker_probe_s=3.0
# connect 4711 did not stop in 20 s, killed
"""


def test_a_run_of_the_peer_is_read():
    (run,) = parse_runs(SAID)
    assert run == Run(
        rows=1_000_000,
        seconds=25.0,
        cpu=40.0,
        broker_cpu=5.25,
        peak_bytes=950 * 2**20,
        startup_seconds=6.25,
        startup_cpu=9.5,
    )
    assert run.rows_per_second == 40_000


def test_a_run_of_the_peer_that_did_not_end_is_no_figure():
    said = "snapshot threads=1 run 1: startup_to_first_event_s=6.2 TIMEOUT end=41"
    with pytest.raises(ValueError, match="TIMEOUT end=41"):
        parse_runs(said)


def runs(*seconds):
    return [
        Run(rows=100_000, seconds=value, cpu=2 * value, peak_bytes=value << 20) for value in seconds
    ]


def test_figures_are_medians_with_their_spread():
    assert figures(runs(2, 1, 5)) == {
        "rows_per_second": 50_000,
        "spread": [20_000, 100_000],
        "cpu_seconds": [4, 2, 10],
        "cpu_seconds_per_million_rows": 40,
        "peak_mib": 5,
    }
    assert ratio(runs(2, 1, 5), runs(4), "rows_per_second") == 2
    assert ratio(runs(2, 1, 5), runs(4), "cpu_per_row") == 0.5


def test_what_more_cores_would_give():
    costs = Costs(
        worker=5, copier=0.1, postgres=1, broker=1.9, copied_bytes=2e8, sent_bytes=1e8, chunks=7
    )
    found = on_cores(costs, 16)
    assert found["together_rows_per_second"] == 2_000_000
    assert sum(found["together_cores"].values()) == pytest.approx(16)
    assert found["workers_alone_rows_per_second"] == 3_200_000
    assert found["workers_alone_needs"] == {
        "postgres_cores": 3.2,
        "broker_cores": 6.1,
        "copier_cores": 0.32,
        "mbit_per_second_from_postgres": 5120,
        "mbit_per_second_to_broker": 2560,
        "chunk_marks_per_second": 22.4,
    }
    assert found["limits_rows_per_second"] == {"copier": 10_000_000, "one_partition": 526_316}
    assert found["limited_by"] == "one_partition"
    assert on_cores(costs, 2)["limited_by"] == "cores"


def test_only_benchmarks_are_offered():
    assert {"snapshot", "growth"} <= set(names())
    assert "parts" not in names()
