"""Train without Prefect, and kill this process with SIGKILL a given time after the work began.

Prints the seconds that the work took, if it was allowed to end.

python -m tests.integration.train_until_killed CONFIG STORE SECONDS [ITERATIONS]
"""

import os
import signal
import sys
import threading
import time

from erl_pipeline.config.load import load_config
from erl_pipeline.pipeline.context import open_context
from erl_pipeline.pipeline.outcome import Silent
from erl_pipeline.pipeline.train import train


def main(config: str, store: str, seconds: float, iterations: int | None = None) -> None:
    settings = load_config(config)
    begin = time.monotonic()
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with open_context(settings, store, Silent(), threading.Event()) as context:
        train(context, iterations)
    print(time.monotonic() - begin, flush=True)
    # The timer must not outlive the work.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
