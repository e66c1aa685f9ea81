"""The one place where Kafka's errors become ours.

Retryable codes mean: nothing is wrong with the data, the same work may be tried again from
the last committed frontier (with a new producer where the old one says it is spent).
"""

# ruff: noqa: SLF001 - the underscore marks librdkafka's local error codes, which are public.

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from cdc.errors import CdcError, EnvironmentProblem, LogError
from cdc.redaction import redact

#: What calls of the client raise. When the client fails for good while callbacks of ours are
#: being served, its exception comes as the cause of a SystemError.
CLIENT_ERRORS: Final = (KafkaException, SystemError)

#: Codes after which the same work may be tried again; see ``is_retryable``.
RETRYABLE: Final = frozenset(
    {
        "kafka_unreachable",
        "kafka_timeout",
        "transaction_aborted",
        "transaction_expired",
        "commit_unknown",
        "read_timeout",
        "open_transaction",
    }
)

_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    }
)
_TIMEOUT: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
_DENIED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_REFUSED: Final = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_REPLICA_ASSIGNMENT,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_DELETION_DISABLED,
    }
)
# Kafka takes '.' and '_' for the same in topic names, and has one code for that and bad names.
_BAD_TOPIC: Final = KafkaError.TOPIC_EXCEPTION


def kafka_error(problem: KafkaException | SystemError | KafkaError) -> KafkaError:
    """The KafkaError inside of an exception of the client, or the error itself."""
    if isinstance(problem, KafkaError):
        return problem
    if isinstance(problem, SystemError):
        if not isinstance(problem.__cause__, KafkaException):
            raise problem
        return kafka_error(problem.__cause__)
    inner = problem.args[0] if problem.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(problem))


def log_error(
    problem: KafkaException | SystemError | KafkaError,
    doing: str,
    *,
    topic: str | None = None,
    connecting: bool = False,
) -> CdcError:
    """Our error for one of Kafka's.

    Args:
        problem: What the client raised or reported.
        doing: What was tried, as the words after "while": ``creating topic shop.public.a``.
        topic: The topic concerned, when one is.
        connecting: A timeout means that there is no broker, not that it is slow.

    Returns:
        LogError, or EnvironmentProblem when the broker cannot be reached or refuses us.
    """
    error = kafka_error(problem)
    code = error.code()
    text = f"Kafka, while {doing}: {redact(error.str())}"
    where = f" {topic}" if topic else ""
    if code in _FENCED:
        return LogError(
            "producer_fenced",
            text,
            remedy="another capture of the same project and source has started; stop one of them",
        )
    if code in _UNREACHABLE or (connecting and code in _TIMEOUT):
        return EnvironmentProblem(
            "kafka_unreachable", text, remedy="is the broker up and log.bootstrap_servers right?"
        )
    if code in _TIMEOUT:
        return LogError("kafka_timeout", text, remedy="is the broker up and healthy?")
    if code in _DENIED:
        return EnvironmentProblem(
            "kafka_denied", text, remedy="check log.security and the broker's ACLs for this user"
        )
    if code in _MISSING:
        return LogError("topic_missing", text, remedy=f"topic{where} is gone from the broker")
    if code in _TOO_LARGE:
        return record_too_large(text)
    if code == KafkaError.TOPIC_ALREADY_EXISTS:
        return LogError(
            "topic_exists", text, remedy=f"another log lives there: delete topic{where}, or rename"
        )
    if code == _BAD_TOPIC:
        kind = "topic_collision" if "collides" in error.str() else "topic_invalid"
        return LogError(kind, text)
    if code in _REFUSED:
        return EnvironmentProblem(
            "topic_refused", text, remedy="check log.replication_factor and the broker's policies"
        )
    if error.txn_requires_abort():
        return LogError("transaction_aborted", text)
    return LogError("kafka_error", text)


def record_too_large(text: str) -> LogError:
    """The error for a record over the topic's limit."""
    return LogError(
        "record_too_large",
        text,
        remedy="raise max.message.bytes of the topic (kafka-configs) or leave out the column",
    )


def is_retryable(error: CdcError) -> bool:
    """Whether the same work may be tried again without an operator's doing."""
    return error.code in RETRYABLE
