"""What a process was told in confidence is in nothing that it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory_udf.common import secrets
from purgatory_udf.launch.job import job


@pytest.fixture(autouse=True)
def hush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH", "murmured")


def test_a_secret_of_the_environment_or_of_a_file_is_hidden_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nssl.key.password=whispered\n"
        'sasl.jaas.config=org.x.PlainLoginModule required username="me-myself" password="${env:HUSH}" '
        'clientSecret="breathed";\n'
    )
    assert secrets.read_secret_properties(str(file))["security.protocol"] == "SASL_SSL"
    said = "of SASL_SSL: whispered? murmured, breathed; org.x.PlainLoginModule required of me-myself"
    assert secrets.redact(said) == (
        "of SASL_SSL: [hidden]? [hidden], [hidden]; org.x.PlainLoginModule required of [hidden]"
    )


def test_a_secret_with_a_quote_in_it_is_hidden_in_each_of_its_parts() -> None:
    secrets.resolve_environment("${env:QUOTED}", {"QUOTED": 'murm"ured'})
    assert secrets.redact("Value not specified for key 'ured', after murm") == (
        "Value not specified for key '[hidden]', after [hidden]"
    )


def test_what_is_too_short_to_be_told_from_other_words_stays() -> None:
    secrets.resolve_environment("${env:SHORT}", {"SHORT": "in"})
    assert secrets.redact("in the beginning") == "in the beginning"


@pytest.mark.parametrize("words", [[], ["--verbose"]], ids=["shortly", "at length"])
def test_a_job_that_fails_says_no_secret(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    @job
    def fails() -> None:
        """Read a secret, and cite it."""
        raise RuntimeError(f"refused: {secrets.resolve_environment('${env:HUSH}')}")

    assert fails.status(words) == 3
    said = capsys.readouterr().err
    assert "refused: [hidden]" in said and "murmured" not in said
    assert said.count("[hidden]") == (2 if words else 1)
