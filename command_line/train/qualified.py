"""What is said of environments that were never examined, or failed: a policy may learn something unwanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import Plan
    from storage.artifacts.store import ArtifactStore


def tell_of_qualification(
    store: ArtifactStore,
    config: RunConfig,
    plan: Plan,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Say it if the environment of a plan is not qualified in this store: as a warning, but as a note of an
    environment that comes with the program and failed no examination."""
    from erl_pipeline.runs.qualification import find_qualification, state_of_qualification, tasks_of_plan

    tasks = tasks_of_plan(plan)
    if tasks is None:
        return
    qualified, sentence = state_of_qualification(store, tasks)
    if qualified:
        return
    if has_users_code(config) or find_qualification(store, tasks) is not None:
        warn(f"{sentence}; `erl-pipeline env qualify CONFIG` examines it")
    else:
        note(
            f"Environment {config.environment.type} comes with erl-pipeline and was not examined with these "
            "settings; `erl-pipeline env qualify CONFIG` does so"
        )


def has_users_code(config: RunConfig) -> bool:
    """Whether the environment, one of its parts or its scorer is a plug-in of another package than this."""
    from erl_pipeline.config.plugins.installed import plugins

    others = {
        package
        for found in (plugins("environments").found, plugins("scorers").found)
        for plugin in found.values()
        if not plugin.is_own
        for package in plugin.packages
    }
    environments = plugins("environments")
    parts = environments[config.environment.type].value.parts(config.environment).values()
    return any(
        not others.isdisjoint(environments[each.type].packages_for(each))
        for each in (config.environment, *(part.settings for part in parts))
    )
