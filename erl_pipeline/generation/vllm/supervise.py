"""Run a command that must not outlive its owner: `python -I supervise.py COMMAND [ARGUMENT ...]`.

Standard library alone, so that it starts at once and in any interpreter. The owner holds the other end
of this process's standard input; when the owner ends, in whatever way, the pipe closes and the whole
process group goes. A pipe also works where the owner started the server from a thread that has ended,
which the parent-death signal of Linux takes for the owner's death.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

_GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


def _die_with_supervisor() -> None:
    """In the child: be killed when this supervisor is; its main thread, which starts us, ends last."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(command: list[str]) -> int:
    """Run `command` until it ends or the owner is gone; returns its exit status."""
    # Only this process ignores it: a signal's disposition to a handler is not inherited over exec.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_supervisor) as child:

        def end_with_owner() -> None:
            # The descriptor itself: a buffered reader would hold a lock at exit.
            while os.read(0, 1024):
                pass
            os.killpg(0, signal.SIGTERM)
            try:
                child.wait(_GRACE_SECONDS)
            finally:
                os.killpg(0, signal.SIGKILL)

        threading.Thread(target=end_with_owner, daemon=True).start()
        status = child.wait()
    print(f"the server ended with status {status}", file=sys.stderr, flush=True)
    # What the command left behind (engine and worker processes) goes too, and this process with it.
    os.killpg(0, signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
