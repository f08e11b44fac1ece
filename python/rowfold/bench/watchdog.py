# SPDX-License-Identifier: MIT
"""An end for a case that stands still: a kernel that never returns holds the process that called it for ever."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from math import ceil

TIME_LIMIT = 900  # seconds; the longest case of the tables takes some tens
STOOD_STILL = 124  # exit status, as timeout(1) has it
_GRACE_SECONDS = 20


@contextlib.contextmanager
def watched(case: str, seconds: float) -> Iterator[None]:
    """Ends the process, with a sentence and the stacks, if the body takes longer: no less ends what it calls."""
    timer = threading.Timer(seconds, _end, (case, seconds))
    timer.daemon = True
    timer.start()
    # No thread of Python's gets to run while the call that stands still holds the interpreter's lock.
    signal.alarm(ceil(seconds) + _GRACE_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        timer.cancel()


def _end(case: str, seconds: float) -> None:
    stderr = sys.__stderr__
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        if stderr is not None:
            sentence = f"not done within {seconds:g} s, and ended; --time-limit SECONDS allows more"
            print(f"rowfold bench: {case}: {sentence}", file=stderr, flush=True)
            faulthandler.dump_traceback(stderr)
    os._exit(STOOD_STILL)
