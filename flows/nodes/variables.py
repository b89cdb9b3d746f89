"""Environment variables of the processes that compute on nodes."""

from __future__ import annotations

import os

_PASSED_ON = ("GOMP_SPINCOUNT", "HF_HUB_DISABLE_PROGRESS_BARS")


def computing_variables(threads: int) -> dict[str, str]:
    """The number of threads of numeric libraries, and what this process passes on from its own."""
    own = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **own}
