# SPDX-License-Identifier: MIT
"""A contender in a process of its own: ``python -m rowfold.bench.worker``, driven by JSON lines on its standard input.

The first line is {"contender", "case", "threads", "options"}; then {"do": "time" | "peak" | "rows" | "describe",
...}. Each gets one line back: {"ok": ...} or {"error": reason}. The end of the input ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

from ..backends import cpu_measure
from .cases import Case
from .contenders import CONTENDERS, Contender, Unavailable
from .memory import growth

# A sample lasts at least so long (seconds), by repeating the call: far above the clock's resolution, and enough for
# the threads to be awake and the processor to have its frequency.
SAMPLE_SECONDS = 0.1


class Worker:
    """Answers the requests for one contender on one case."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.threads = request["threads"]
        self.contender: Contender = CONTENDERS[request["contender"]]()
        self.contender.setup(Case(**request["case"]), self.threads, request["options"])
        self.memory = growth(self.contender.run)
        self.calls = 1
        self.calls = max(1, round(SAMPLE_SECONDS / self.time()))

    def time(self) -> float:
        """Seconds of one call, the mean over a sample."""
        run, calls = self.contender.run, self.calls
        if calls > 1:  # short enough that the caches, which the other workers used since, would show
            run()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls

    def answer(self, request: dict[str, Any]) -> Any:
        """The value of one request."""
        what = request["do"]
        if what == "time":
            return self.time()
        if what == "peak":
            return cpu_measure(self.threads)
        if what == "rows":
            result = self.contender.result()
            return None if result is None else [values[request["rows"]].tolist() for values in result]
        if what == "describe":
            return {**self.contender.describe(), "extra_memory_bytes": self.memory, "calls_per_sample": self.calls}
        raise ValueError(f"unknown request {what!r}")


def main() -> None:
    """Serves requests until the input ends."""
    # Whatever a library prints goes to stderr; only answers go to the pipe.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if worker is None:
                worker = Worker(request)
                _reply(replies, {"ok": None})
            else:
                _reply(replies, {"ok": worker.answer(request)})
        except (Unavailable, MemoryError) as error:
            _reply(replies, {"error": str(error) or type(error).__name__})
        except Exception as error:
            _reply(replies, {"error": f"{type(error).__name__}: {error}"})


def _reply(replies: TextIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
