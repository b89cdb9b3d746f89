"""Several environments in one run: each task is of one of them."""

from __future__ import annotations

from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.environments.mixture import tasks
from erl_pipeline.environments.mixture.files import BUILT_FILES
from erl_pipeline.environments.mixture.settings import MixtureConfig
from erl_pipeline.environments.mixture.tiny import tiny_parts, tiny_view

ENVIRONMENT = EnvironmentPlugin(
    settings=MixtureConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=tasks.open_task,
    test_tasks=tasks.test_tasks,
    test_needs="a test split of each part",
    files=tasks.files,
    tiny=tiny_parts,
    tiny_needs="parts that each have a form for it",
    tiny_view=tiny_view,
    parts=tasks.parts_of,
    left_out=tasks.left_out,
    built_files=BUILT_FILES,
    for_template=tasks.for_template,
    quick_to_list=tasks.quick_to_list,
)
