"""Start a local server, print its address, and keep it running: `python -m tests.flows.hold_server LOG`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from flows.local_server import prefect_api

if __name__ == "__main__":
    with prefect_api(Path(sys.argv[1])) as url:
        print(url, flush=True)
        threading.Event().wait()
