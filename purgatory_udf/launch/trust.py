"""The certificates that Python trusts, as a Java trust store.

A Java from PyPI brings its own list, and knows nothing of an authority that the machine's owner has added (a company's
proxy, say). Where Java finds a server untrustworthy, Python's list gets a second say.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

PASSWORD = "changeit"  # Not a secret: a trust store's password only guards against accidental damage.

_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2


def store(file: Path) -> tuple[str, ...]:
    """Write the store and return the JVM options that make it count."""
    file.write_bytes(encode(ssl.create_default_context().get_ca_certs(binary_form=True)))
    return (f"-Djavax.net.ssl.trustStore={file}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}")


def encode(certificates: list[bytes]) -> bytes:
    """Java's own key store format, JKS: a header, an entry a certificate, and a keyed digest over both."""
    head = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    body = head + b"".join(_entry(f"ca-{index}", certificate) for index, certificate in enumerate(certificates))
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _entry(alias: str, certificate: bytes) -> bytes:
    made_at = 0
    head = struct.pack(">I", _TRUSTED) + _text(alias) + struct.pack(">Q", made_at) + _text("X.509")
    return head + struct.pack(">I", len(certificate)) + certificate


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
