"""The program of a process under examination. The environment in it may hang or die without doing harm."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Literal

from erl_pipeline.qualification.served_environment import ServedEnvironment
from storage.errors import PipelineError

Answer = tuple[Literal["gives", "refuses", "raises"], Any]
"""What a call returned, or the text of an error: one that the user can correct (`refuses`), or any other."""


def main() -> None:
    """Serve the environment that the first message names, until the connection is closed."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    line: Connection[Any, Any] = Connection(int(sys.argv[1]))
    served: ServedEnvironment | None = None
    while True:
        try:
            name, arguments = pickle.loads(line.recv_bytes())
        except EOFError:
            return
        answer: Answer
        try:
            if served is None:
                served = ServedEnvironment(*arguments)
                answer = ("gives", None)
            else:
                answer = ("gives", getattr(served, name)(*arguments))
        except PipelineError as error:
            answer = ("refuses", str(error))
        except Exception as error:  # The examiner wants to know whatever the environment raises.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}, line {frame.lineno}"
            answer = ("raises", f"{type(error).__name__}: {error} ({place})")
        line.send_bytes(pickle.dumps(answer))


def _end_with(parent: int) -> None:
    """End when the examiner is gone, even in the middle of a call that never returns."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
