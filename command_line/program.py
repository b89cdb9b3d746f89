"""Command lines in the form in which the user called this program, so that suggested ones can be copied."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command(words: Sequence[str]) -> str:
    """A command line of this program, quoted for a shell."""
    called = sys.argv[0]
    name = Path(called).name
    found = shutil.which(name)
    by_name = called == name or (found is not None and Path(found).samefile(called))
    return shlex.join([name if by_name else called, *words])
