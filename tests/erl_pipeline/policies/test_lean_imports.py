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


def test_the_list_of_all_distributions_is_made_only_for_a_package_of_another_name() -> None:
    code = (
        "import importlib.metadata as metadata\n"
        "listed, lists = metadata.packages_distributions, []\n"
        "metadata.packages_distributions = lambda: lists.append(1) or listed()\n"
        "import erl_pipeline.policies.lean_imports\n"
        "from transformers.utils.import_utils import PACKAGE_DISTRIBUTION_MAPPING as found\n"
        "from transformers import GPT2LMHeadModel\n"
        "assert (found.get('torch'), found.get('jinja2')) == (['torch'], ['Jinja2'])\n"
        "assert not lists\n"
        "assert (found.get('yaml'), found.get('nothing', [])) == (['PyYAML'], [])\n"
        "assert lists == [1] and metadata.packages_distributions()['yaml'] == ['PyYAML']"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
