"""What is hidden from transformers stays out of its import, and can be imported afterwards."""

from __future__ import annotations

import subprocess
import sys


def test_packages_that_are_never_called_are_not_imported_until_somebody_asks() -> None:
    code = (
        "import sys, erl_pipeline.policies.lean_imports\n"
        "from transformers import AutoModelForCausalLM, DynamicCache, GPT2LMHeadModel\n"
        "assert not {'sklearn', 'scipy', 'boto3'} & sys.modules.keys(), sys.modules.keys()\n"
        "import scipy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
