import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.errors import EnvironmentProblem, LogError
from cdc.log.kafka_errors import is_retryable, kafka_error, log_error


@pytest.mark.parametrize(
    ("code", "kind", "ours", "retryable"),
    [
        (KafkaError._TRANSPORT, EnvironmentProblem, "kafka_unreachable", True),
        (KafkaError._ALL_BROKERS_DOWN, EnvironmentProblem, "kafka_unreachable", True),
        (KafkaError._TIMED_OUT, LogError, "kafka_timeout", True),
        (KafkaError._MSG_TIMED_OUT, LogError, "kafka_timeout", True),
        (KafkaError._FENCED, LogError, "producer_fenced", False),
        (KafkaError.PRODUCER_FENCED, LogError, "producer_fenced", False),
        (KafkaError.INVALID_PRODUCER_EPOCH, LogError, "producer_fenced", False),
        (KafkaError._AUTHENTICATION, EnvironmentProblem, "kafka_denied", False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, EnvironmentProblem, "kafka_denied", False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, LogError, "topic_missing", False),
        (KafkaError.TOPIC_ALREADY_EXISTS, LogError, "topic_exists", False),
        (KafkaError.MSG_SIZE_TOO_LARGE, LogError, "record_too_large", False),
        (KafkaError.INVALID_REPLICATION_FACTOR, EnvironmentProblem, "topic_refused", False),
        (KafkaError.INVALID_MSG, LogError, "kafka_error", False),
    ],
)
def test_codes(code, kind, ours, retryable):
    error = log_error(KafkaException(KafkaError(code)), "testing", topic="shop.public.a")
    assert type(error) is kind
    assert error.code == ours
    assert is_retryable(error) is retryable
    assert "testing" in error.message


def test_a_transaction_that_must_be_aborted_may_be_tried_again():
    problem = KafkaError(KafkaError._INCONSISTENT, "3 failed", False, False, True)
    error = log_error(problem, "committing")
    assert error.code == "transaction_aborted"
    assert is_retryable(error)


def test_collision_of_dot_and_underscore_is_told_from_a_bad_name():
    collision = KafkaError(KafkaError.TOPIC_EXCEPTION, "Topic 'a_b' collides with existing: a.b")
    assert log_error(collision, "creating").code == "topic_collision"
    bad = KafkaError(KafkaError.TOPIC_EXCEPTION, "Topic name is invalid")
    assert log_error(bad, "creating").code == "topic_invalid"


def test_a_timeout_while_connecting_is_an_unreachable_broker():
    error = log_error(KafkaError(KafkaError._TIMED_OUT), "connecting", connecting=True)
    assert error.code == "kafka_unreachable"
    assert error.exit_code == 3


def test_secrets_in_the_clients_text_are_masked():
    error = log_error(KafkaError(KafkaError._FAIL, "bad password=made-up-word"), "connecting")
    assert "made-up-word" not in str(error)


def test_foreign_exceptions_of_the_client_are_taken_as_they_are():
    assert kafka_error(KafkaException("odd")).code() == KafkaError._FAIL
