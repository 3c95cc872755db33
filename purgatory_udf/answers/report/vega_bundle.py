"""The JavaScript that draws the charts of a page: Vega, Vega-Lite and vega-embed as one script.

Bundling takes about a second, so the result is kept in the user's cache folder, in one file for each version of
vl-convert and Vega-Lite. Its first line is the SHA-256 of the rest: a damaged file is bundled again and replaced.
Without a usable folder every process bundles for itself.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from purgatory_udf.backend.file_system import write_whole
from purgatory_udf.common.local_paths import user_cache_folder

_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def vega_bundle() -> str:
    """Return the script, from the cache if possible. It defines `vegaEmbed` and can be put into a `script` element."""
    import altair as alt
    import vl_convert

    vega_lite = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    file = user_cache_folder() / f"vega-lite-{vega_lite}-vl-convert-{version('vl-convert-python')}.js"
    script = _read(file)
    if script is None:
        script = vl_convert.javascript_bundle(_SNIPPET, vega_lite)
        with suppress(OSError):
            write_whole(file, f"{_digest(script)}\n{script}")
    # An end tag would end the element, also within a string of the script.
    return script.replace("</script", "<\\/script")


def _read(file: Path) -> str | None:
    """Return the script in a file, or None if the file cannot be read or is damaged."""
    try:
        digest, _, script = file.read_bytes().decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return script if digest == _digest(script) else None


def _digest(script: str) -> str:
    """Return the checksum of a script, which also depends on the snippet."""
    return hashlib.sha256(f"{_SNIPPET}\n{script}".encode()).hexdigest()
