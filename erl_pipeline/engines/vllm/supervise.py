"""Run a command that must not outlive its owner: `python -I supervise.py COMMAND [ARGUMENT ...]`.

It uses the standard library alone, so that it starts quickly. The owner holds the other end of this process's
standard input; when the owner ends, in whatever way, the pipe closes and the whole process group is ended.
A pipe also works where the thread that started the server has ended; the parent-death signal of Linux would
take that for the owner's death.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

_GRACE_SECONDS = 10.0
_KILL_SECONDS = 30.0
"""How long a killed process is awaited: its memory on a GPU is free only when it is gone."""
_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> None:
    """Run `command` until it ends or the owner is gone, then end its process group, this process included."""
    # At each start vLLM makes sockets and files that it never removes.
    scratch = tempfile.mkdtemp(prefix="erl-vllm-")
    environment = {**os.environ, "TMPDIR": scratch}
    # Processes that their parents leave behind become children of this one, so that it can await them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # A handler that does nothing, instead of SIG_IGN, which the command would inherit.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=_die_with_supervisor
    )
    child_ended = os.pidfd_open(child.pid)
    ready, _, _ = select.select([sys.stdin.fileno(), child_ended], [], [])
    if child_ended in ready:
        print(f"the server ended with status {child.wait()}", file=sys.stderr, flush=True)
    os.killpg(0, signal.SIGTERM)
    if not _all_ended(_GRACE_SECONDS):
        _all_ended(_KILL_SECONDS, kill=True)
    shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _die_with_supervisor() -> None:
    """In the child: be killed when the supervisor is; its main thread, which starts the child, ends last."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _all_ended(seconds: float, kill: bool = False) -> bool:
    """Wait, at most `seconds`, until no process that this one started is left; with `kill` end them."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if kill:
                _kill_children()
            ended, _ = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                time.sleep(_POLL_SECONDS)
    except ChildProcessError:
        return True
    return False


def _kill_children() -> None:
    """Kill the children of this process; theirs become children of this one, and are killed next time."""
    this = os.getpid()
    # A kernel without this file: main ends the group at the end, and nobody waits for that.
    with suppress(FileNotFoundError), open(f"/proc/{this}/task/{this}/children") as children:
        for each in children.read().split():
            os.kill(int(each), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
