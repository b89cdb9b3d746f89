"""Record the token lengths of real FrozenLake rollouts, from which `update_speed.py` builds its batches.

    PYTHONPATH=benchmarks python -m workloads.record_lengths [configs/frozen_lake_smollm2.yaml]

Generates one iteration of ERL rollouts and writes, for each trajectory, its role, a number for its prompt,
and the lengths of prompt and response. No text and no token is kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile

from workloads.batches import LENGTHS
from workloads.planned import planned_run

from erl_pipeline.config.loading import load_config
from erl_pipeline.stages.names import TRAJECTORIES
from storage.tables.trajectories import Trajectory, read_trajectories


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("config", nargs="?", default="configs/frozen_lake_smollm2.yaml")
    arguments = parser.parse_args()
    config = load_config(arguments.config, ["method.memory=off"])
    with tempfile.TemporaryDirectory() as store, planned_run(config, store) as run:
        run.begin()
        rows = read_trajectories(run.files(run.execute_run(run.first_shards(1)), TRAJECTORIES))
    LENGTHS.write_text(json.dumps(lengths(rows), indent=None) + "\n")
    print(f"{len(rows)} trajectories written to {LENGTHS}")


def lengths(rows: list[Trajectory]) -> dict[str, object]:
    """The roles and lengths of trajectories; equal prompts have equal numbers."""
    prompts = list(dict.fromkeys(row.prompt_token_ids for row in rows))
    return {
        "columns": ["role", "prompt", "prompt_tokens", "response_tokens"],
        "trajectories": [
            [
                row.role,
                prompts.index(row.prompt_token_ids),
                len(row.prompt_token_ids),
                len(row.response_token_ids),
            ]
            for row in rows
        ],
    }


if __name__ == "__main__":
    main()
