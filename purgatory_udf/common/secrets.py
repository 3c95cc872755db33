"""Secrets in client settings: read from a file or the environment, and redacted in all output.

A secret must not be on the command line, because every user of the machine can read it (`ps`) and shells record it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import open_file


def read_properties(file: Path) -> dict[str, str]:
    """Read a properties file: a key and a value per line, separated by blanks, `=` or `:`; `#` starts a comment.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        with open_file(file) as opened:
            lines = opened.read().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"{file}: cannot be read: {reason}") from None
    pairs = (re.split(r"\s*[=:\s]\s*", line.strip(), maxsplit=1) for line in lines if line.strip())
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs if not pair[0].startswith(("#", "!"))}


# The syntax of Kafka's EnvVarConfigProvider.
_FROM_ENVIRONMENT = re.compile(r"\$\{env:([^}]*)\}")
# The words of a JAAS entry that are not values.
_NO_VALUE = re.compile(r"[\w.$]*LoginModule|required|requisite|sufficient|optional|[\w.-]+=|")
# Kafka's settings of type PASSWORD, and other names that suggest a secret.
_SECRET = re.compile(r"password|passphrase|secret|token\b|jaas|keystore\.key|credential", re.IGNORECASE)
# The secrets that this process has read. A client that rejects its settings may quote them in its error.
_known_secrets: set[str] = set()
# Shorter values are not redacted: they are part of many words.
_SHORTEST = 4


def resolve_environment(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the text with each `${env:NAME}` replaced by that environment variable, which is redacted from now on.

    Raises:
        UserError: A variable is not set.
    """

    def variable(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise UserError(f"{match[0]}: the environment variable {match[1]} is not set; export it")
        _register(environ[match[1]])
        return environ[match[1]]

    return _FROM_ENVIRONMENT.sub(variable, text)


def require_no_secret(option: str, key: str, value: str) -> None:
    """Raise UserError if an option contains a secret, instead of the name of an environment variable.

    `key` and `value` are those of `option KEY=VALUE`; the key shows whether the value is secret.
    """
    if _SECRET.search(key) and not _FROM_ENVIRONMENT.search(value):
        raise UserError(
            f"{option} {key}: a secret on the command line is visible to all users of this machine; put it into a file "
            f"and pass that by {option}-file, or write {option} '{key}=${{env:NAME}}'"
        )


def read_secret_properties(path: str) -> dict[str, str]:
    """Return the settings of a properties file with environment variables resolved. Passwords are then redacted."""
    settings = {key: resolve_environment(value) for key, value in read_properties(Path(path)).items() if key}
    for key, value in settings.items():
        if _SECRET.search(key):
            _register(value)
    return settings


def redact(text: str) -> str:
    """Return the text with every secret that this process has read replaced by `[hidden]`."""
    for secret in sorted(_known_secrets, key=len, reverse=True):
        text = text.replace(secret, "[hidden]")
    return text


def _register(secret: str) -> None:
    """Register the secret and each value inside it for redaction, because an error may quote a single value."""
    words = [secret, *(word for word in re.split(r"[\s\";]+|(?<==)", secret) if not _NO_VALUE.fullmatch(word))]
    _known_secrets.update(word for word in words if len(word) >= _SHORTEST)
