"""Imports lancedb without the client of Lance's REST service, which nothing here calls.

`import storage.lean_lancedb` must come before the first import of lancedb. Lancedb needs only the types of
the client's requests, but also imports its calls: hundreds of functions that pydantic prepares one by one,
a tenth of the start-up time of a process's first stage. Code that imports the client itself gets all of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

_CLIENT = "lance_namespace_urllib3_client"


def _import_lancedb() -> None:
    spec = importlib.util.find_spec(_CLIENT)
    if spec is None or {_CLIENT, "lancedb"} & set(sys.modules):
        return
    # The module is not executed: its path leads to the types, and no calls are imported.
    sys.modules[_CLIENT] = importlib.util.module_from_spec(spec)
    try:
        importlib.import_module("lancedb")
    finally:
        del sys.modules[_CLIENT]


_import_lancedb()
