import subprocess
import sys

HEAVY = ("torch", "transformers", "tokenizers", "lancedb", "polars", "sentence_transformers")


def test_what_a_plan_imports_of_environments_and_methods_is_light() -> None:
    """Planning must be fast, also in processes that compute nothing."""
    program = (
        "import sys\n"
        "import erl_pipeline.environments.frozen_lake, erl_pipeline.environments.threads\n"
        "import erl_pipeline.methods.erl, erl_pipeline.environments.prompt_format\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
