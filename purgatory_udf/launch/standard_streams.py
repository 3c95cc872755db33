"""A job's own stdout and stderr under spark-submit.

Spark connects both of a job's streams to one pipe and copies that to its own stdout, so errors would be mixed with
results, and a terminal could not be detected. On Linux the job opens the streams of the JVM instead.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Mapping, MutableMapping

OFFER_VARIABLE = "PURGATORY_STREAMS_OF"
_BOTH = (1, 2)


def offer_streams(environ: MutableMapping[str, str]) -> None:
    """Publish this process's streams for the job; called by the process that becomes the JVM."""
    environ[OFFER_VARIABLE] = str(os.getpid())
    for stream in _BOTH:
        # The job opens a regular file a second time, with its own position; in append mode neither overwrites the
        # other.
        if stat.S_ISREG(os.fstat(stream).st_mode):
            fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)


def take_streams(environ: Mapping[str, str] = os.environ) -> None:
    """Use the parent's streams if the parent offered them and they can be opened; called by the job."""
    parent = os.getppid()
    if environ.get(OFFER_VARIABLE) != str(parent):
        return
    try:
        descriptors = [os.open(f"/proc/{parent}/fd/{stream}", os.O_WRONLY | os.O_APPEND) for stream in _BOTH]
    except OSError:
        return
    sys.stdout.flush()
    for stream, descriptor in zip(_BOTH, descriptors, strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
