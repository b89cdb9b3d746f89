"""How the user calls this program, so that the commands it suggests can be copied as they are."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command(words: Sequence[str]) -> str:
    """A command line of this program, as a shell takes it."""
    called = sys.argv[0]
    name = Path(called).name
    found = shutil.which(name)
    by_name = called == name or (found is not None and Path(found).samefile(called))
    return shlex.join([name if by_name else called, *words])
