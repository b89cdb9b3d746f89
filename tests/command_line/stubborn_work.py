"""Work that ends when asked to, or never: `python -m tests.command_line.stubborn_work obeys|ignores`."""

from __future__ import annotations

import sys
import threading

from command_line.interruption import StopRequest, call_interruptibly


def main() -> None:
    """Print that the work has begun, then end when asked to, or never."""
    stop = StopRequest()
    obeys = sys.argv[1] == "obeys"

    def work() -> str:
        print("working", flush=True)
        (stop.event if obeys else threading.Event()).wait()
        return "finished what was in flight"

    result = call_interruptibly(work, stop, lambda line: print(line, flush=True))
    print(result, stop.exit_status, flush=True)


if __name__ == "__main__":
    main()
