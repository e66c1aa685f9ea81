import pytest

from cdc.errors import (
    CdcError,
    EnvironmentProblem,
    LogError,
    ProtocolViolation,
    SourceError,
    SourceRefused,
)
from snapshots.failures import Verdict, verdict


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        (SourceError, "connection_lost", Verdict.RETRY),
        (SourceError, "server_starting", Verdict.RETRY),
        (SourceError, "server_stopping", Verdict.RETRY),
        (SourceError, "lock_not_granted", Verdict.RETRY),
        (EnvironmentProblem, "server_unreachable", Verdict.RETRY),
        (EnvironmentProblem, "too_many_connections", Verdict.RETRY),
        (EnvironmentProblem, "kafka_unreachable", Verdict.RETRY),
        (LogError, "kafka_timeout", Verdict.RETRY),
        (LogError, "commit_unknown", Verdict.RETRY),
        (LogError, "transaction_aborted", Verdict.RETRY),
        (LogError, "transaction_expired", Verdict.RETRY),
        (SourceError, "source_error", Verdict.COUNT),
        (LogError, "kafka_error", Verdict.COUNT),
        (CdcError, "internal_error", Verdict.COUNT),
        (SourceError, "table_rewritten", Verdict.FAIL),
        (SourceError, "table_changed", Verdict.FAIL),
        (SourceRefused, "no_permission", Verdict.FAIL),
        (SourceRefused, "bad_value", Verdict.FAIL),
        (SourceRefused, "record_too_large", Verdict.FAIL),
        (ProtocolViolation, "bad_copy_data", Verdict.FAIL),
        (LogError, "topic_missing", Verdict.FAIL),
        (LogError, "topic_differs", Verdict.FAIL),
        (LogError, "producer_fenced", Verdict.STOP),
    ],
)
def test_what_follows_from_an_error(kind, code, expected):
    assert verdict(kind(code, "made up")) is expected
