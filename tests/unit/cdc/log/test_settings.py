import pytest

from cdc.errors import ConfigError
from cdc.log.settings import SECURITY_KEYS, client_settings


def test_security_reaches_the_client_and_nothing_else_does():
    settings = client_settings(
        "broker:9092",
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "cdc",
            "sasl.password": "made-up-word",
            "ssl.ca.location": "/etc/ca.pem",
        },
    )
    assert settings["bootstrap.servers"] == "broker:9092"
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.password"] == "made-up-word"
    assert SECURITY_KEYS & settings.keys() == {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
    }


@pytest.mark.parametrize(
    "key",
    [
        "plugin.library.paths",
        "sasl.jaas.config",
        "sasl.kerberos.kinit.cmd",
        "bootstrap.servers",
        "enable.ssl.certificate.verification",
        "ssl.endpoint.identification.algorithm",
    ],
)
def test_other_client_properties_are_refused(key):
    with pytest.raises(ConfigError) as caught:
        client_settings("broker:9092", {key: "made-up-word"})
    assert caught.value.code == "unknown_key"
    assert key in caught.value.message
    assert "made-up-word" not in str(caught.value)


def test_a_slip_of_the_pen_is_told_the_nearest_key():
    with pytest.raises(ConfigError) as caught:
        client_settings("broker:9092", {"sasl.usernam": "cdc"})
    assert "sasl.username" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("key", "value"), [("security.protocol", "TLS"), ("sasl.mechanism", "OAUTHBEARER")]
)
def test_unknown_values_are_refused(key, value):
    with pytest.raises(ConfigError) as caught:
        client_settings("broker:9092", {key: value})
    assert caught.value.code == "bad_value"
