"""A job's own stdout and stderr under spark-submit.

Spark runs a job's Python with both joined in a pipe that it copies to its own stdout: errors would land among results,
and no terminal could be told from a file. On Linux the JVM's own two are within reach, so the job takes those.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Mapping, MutableMapping

OFFERED = "PURGATORY_STREAMS_OF"
_BOTH = (1, 2)


def offer(environ: MutableMapping[str, str]) -> None:
    """Called by the process that becomes the JVM: let the job below it take our streams."""
    environ[OFFERED] = str(os.getpid())
    for stream in _BOTH:
        # The job opens a file anew, at a place of its own: only appending keeps the two from overwriting each other.
        if stat.S_ISREG(os.fstat(stream).st_mode):
            fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)


def take(environ: Mapping[str, str] = os.environ) -> None:
    """Called by the job: write where its parent writes, if that was offered and can be had; else all stays as it is."""
    parent = os.getppid()
    if environ.get(OFFERED) != str(parent):
        return
    try:
        taken = [os.open(f"/proc/{parent}/fd/{stream}", os.O_WRONLY | os.O_APPEND) for stream in _BOTH]
    except OSError:
        return
    sys.stdout.flush()
    for stream, descriptor in zip(_BOTH, taken, strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
