"""Secrets come from a file or the environment: the words of a command are read by everybody on the machine (`ps`), kept
by shells, and shown in logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from purgatory_udf.common.errors import UserError

# Files of properties: in a line a key and a value, parted by blanks, `=` or `:`; `#` begins a comment.


def read_properties(file: Path) -> dict[str, str]:
    """A UserError if it cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{file}: cannot be read: {reason}") from None
    pairs = (re.split(r"\s*[=:\s]\s*", line.strip(), maxsplit=1) for line in lines if line.strip())
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs if not pair[0].startswith(("#", "!"))}


# As Kafka's own EnvVarConfigProvider has it.
_FROM_ENVIRONMENT = re.compile(r"\$\{env:([^}]*)\}")
# Words of a JAAS entry that are none of its values.
_NO_VALUE = re.compile(r"[\w.$]*LoginModule|required|requisite|sufficient|optional|[\w.-]+=|")
# Kafka's settings of type PASSWORD, and whatever else calls itself a secret.
_SECRET = re.compile(r"password|passphrase|secret|token\b|jaas|keystore\.key|credential", re.IGNORECASE)
# What this process was told of them; a client that refuses its settings may cite these.
_remembered: set[str] = set()
_SHORTEST = 4


def resolve_environment(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text with each `${env:NAME}` replaced by that variable of the environment."""

    def variable(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise UserError(f"{match[0]}: the environment has no variable of that name")
        _remember(environ[match[1]])
        return environ[match[1]]

    return _FROM_ENVIRONMENT.sub(variable, text)


def require_no_secret(option: str, key: str, value: str) -> None:
    """Raises UserError if a command's own words set a secret; what they refer to may be one."""
    if _SECRET.search(key) and not _FROM_ENVIRONMENT.search(value):
        raise UserError(
            f"{option} {key}: a secret on a command line can be read by everybody on this machine; put it into a file "
            f"and give that by {option}-file, or write {option} '{key}=${{env:NAME}}'"
        )


def read_secret_properties(path: str) -> dict[str, str]:
    """The settings of a properties file, with what they take from the environment."""
    settings = {key: resolve_environment(value) for key, value in read_properties(Path(path)).items() if key}
    for key, value in settings.items():
        if _SECRET.search(key):
            _remember(value)
    return settings


def redact(text: str) -> str:
    """The text without any secret that this process was told."""
    for secret in sorted(_remembered, key=len, reverse=True):
        text = text.replace(secret, "[hidden]")
    return text


def _remember(secret: str) -> None:
    """As a whole, and each of its values: with a quote too many, a client takes one for a name. What is shorter than a
    few letters stands in many a word."""
    words = [secret, *(word for word in re.split(r"[\s\";]+|(?<==)", secret) if not _NO_VALUE.fullmatch(word))]
    _remembered.update(word for word in words if len(word) >= _SHORTEST)
