"""Code that runs within vLLM's processes, and how a server that a run starts is told of it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

ARGUMENTS = (
    # The module that this names registers the backend of the second.
    "--worker-extension-cls=erl_weight_transfer.Extension",
    "--weight-transfer-config=" + json.dumps({"backend": "erl_shared_memory"}),
)
"""Arguments of a server that takes weights from memory."""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What a server's environment needs besides `variables` to find the module: its interpreter need not have
    this package."""
    before = variables.get("PYTHONPATH")
    here = str(Path(__file__).parent)
    return {"PYTHONPATH": here if not before else f"{here}{os.pathsep}{before}"}
