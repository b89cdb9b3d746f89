"""LanceDB is imported without the calls of its REST client; the client works for code that asks for it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import storage.lean_lancedb
import lancedb
assert "lance_namespace_urllib3_client.models" in sys.modules
assert "lance_namespace_urllib3_client.api" not in sys.modules
table = lancedb.connect("memory://").create_table("numbers", [{"number": 1}, {"number": 2}])
assert table.search().where("number > 1").to_list() == [{"number": 2}]

import lance_namespace_urllib3_client as client
assert client.ApiClient and client.BranchApi
"""


def test_the_calls_are_imported_only_by_whoever_asks_for_them() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
