"""Secrets that a process has read are redacted in all its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory_udf.common import secrets
from purgatory_udf.launch.job import job


@pytest.fixture(autouse=True)
def secret_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH", "murmured")


def test_secrets_of_file_and_environment_are_redacted(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nssl.key.password=whispered\n"
        'sasl.jaas.config=org.x.PlainLoginModule required username="me-myself" password="${env:HUSH}" '
        'clientSecret="breathed";\n'
    )
    assert secrets.read_secret_properties(str(file))["security.protocol"] == "SASL_SSL"
    message = "of SASL_SSL: whispered? murmured, breathed; org.x.PlainLoginModule required of me-myself"
    assert secrets.redact(message) == (
        "of SASL_SSL: [hidden]? [hidden], [hidden]; org.x.PlainLoginModule required of [hidden]"
    )


def test_each_part_of_quoted_secret_is_redacted() -> None:
    secrets.resolve_environment("${env:QUOTED}", {"QUOTED": 'murm"ured'})
    assert secrets.redact("Value not specified for key 'ured', after murm") == (
        "Value not specified for key '[hidden]', after [hidden]"
    )


def test_short_values_are_not_redacted() -> None:
    secrets.resolve_environment("${env:SHORT}", {"SHORT": "in"})
    assert secrets.redact("in the beginning") == "in the beginning"


@pytest.mark.parametrize("words", [[], ["--verbose"]], ids=["short", "verbose"])
def test_failing_job_prints_no_secret(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    @job
    def fails() -> None:
        """Read a secret, and quote it in an error."""
        raise RuntimeError(f"refused: {secrets.resolve_environment('${env:HUSH}')}")

    assert fails.status(words) == 3
    message = capsys.readouterr().err
    assert "refused: [hidden]" in message and "murmured" not in message
    assert message.count("[hidden]") == (2 if words else 1)
