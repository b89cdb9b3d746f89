"""What the import of transformers is told faster is what Python's own library says."""

from __future__ import annotations

import importlib.metadata

import erl_pipeline.policies.lean_imports
from erl_pipeline.policies.lean_imports import package_distributions


def test_each_package_is_from_the_distributions_that_importlib_names() -> None:
    quick, slow = package_distributions(), importlib.metadata.packages_distributions()
    for package in ("torch", "transformers", "tokenizers", "PIL", "yaml", "dateutil", "erl_pipeline"):
        assert quick.get(package) == slow.get(package)
    assert quick["torch"] == ["torch"]


def test_importlib_answers_by_itself_again_after_the_import() -> None:
    assert erl_pipeline.policies.lean_imports.package_distributions is not (
        importlib.metadata.packages_distributions
    )
