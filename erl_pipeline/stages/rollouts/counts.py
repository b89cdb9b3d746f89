"""Counting what a set of trajectories holds, whatever the roles of its method are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from erl_pipeline.environments.interface import part_name
from erl_pipeline.episodes.roles import NEVER_TRAINED
from storage.texts import REPLACED_TEXTS

if TYPE_CHECKING:
    from erl_pipeline.episodes.play import Played
    from storage.tables.trajectories import Trajectory

_COUNT, _SUCCESSES = "_count", "_successes"
_PART, _EPISODES = "part.", ".episodes"


def count_rollouts(rows: Sequence[Trajectory]) -> dict[str, int]:
    """Trajectories and successes by role, episodes, and tokens.

    An episode succeeded when one of its trajectories did. `generated_tokens` counts tokens the policy
    sampled; `prompt_tokens` counts each prompt once, and the environment's tokens between turns.
    """
    generated = sum(sum(row.response_mask) for row in rows)
    read = sum(len(row.prompt_token_ids) + len(row.response_token_ids) for row in rows)
    counts = {
        "trajectories": len(rows),
        "episodes": len({row.episode_id for row in rows}),
        "episode_successes": len({row.episode_id for row in rows if row.success}),
        "truncated": sum(row.truncated for row in rows),
        "ill_formed": sum(row.finish_reason == "ill_formed" for row in rows),
        "generated_tokens": generated,
        "prompt_tokens": read - generated,
    }
    for role in dict.fromkeys(row.role for row in rows):
        of_role = [row for row in rows if row.role == role]
        counts[f"{role}{_COUNT}"] = len(of_role)
        counts[f"{role}{_SUCCESSES}"] = sum(row.success for row in of_role)
    return counts


def replaced_texts(plays: Iterable[Played], others: int = 0) -> dict[str, int]:
    """In how many texts from outside a character was replaced, and in `others`; empty for none."""
    count = others + sum(played.counters.get(REPLACED_TEXTS, 0) for played in plays)
    return {REPLACED_TEXTS: count} if count else {}


def count_parts(rows: Sequence[Trajectory]) -> dict[str, int]:
    """For each part of a mixture: episodes, those whose first attempt succeeded, and those in which any did.
    A first attempt is a trajectory without a parent."""
    counts: dict[str, int] = {}
    for name in sorted({part_name(row.task_id) for row in rows}):
        of_part = [row for row in rows if part_name(row.task_id) == name]
        first = [row for row in of_part if row.parent_trajectory_id is None]
        counts[f"{_PART}{name}{_EPISODES}"] = len({row.episode_id for row in of_part})
        counts[f"{_PART}{name}.solved_first"] = sum(row.success for row in first)
        counts[f"{_PART}{name}.solved"] = len({row.episode_id for row in of_part if row.success})
    return counts


def part_rates(counters: Mapping[str, int]) -> dict[str, float]:
    """For each part of a mixture, the share of episodes whose first attempt succeeded, and of those in which
    any did."""
    rates = {}
    for name, episodes in counters.items():
        if name.startswith(_PART) and name.endswith(_EPISODES) and episodes:
            part = name.removesuffix(_EPISODES)
            rates[f"{part}.success_first"] = counters[f"{part}.solved_first"] / episodes
            rates[f"{part}.success_episode"] = counters[f"{part}.solved"] / episodes
    return rates


def trajectories_by_role(counters: Mapping[str, int | float]) -> dict[str, int]:
    """How many trajectories of each role `count_rollouts` has counted."""
    roles = [name.removesuffix(_SUCCESSES) for name in counters if name.endswith(_SUCCESSES)]
    return {role: int(counters[f"{role}{_COUNT}"]) for role in roles if f"{role}{_COUNT}" in counters}


def success_rates(counters: Mapping[str, int]) -> dict[str, float]:
    """Shares of trajectories that succeeded, by role, and of episodes that did. A rate without trials is left
    out, and so is that of a role that attempts nothing."""
    rates = {}
    for name, tries in counters.items():
        role = name.removesuffix(_COUNT)
        if role != name and tries and role not in NEVER_TRAINED:
            rates[f"success_{role}"] = counters[f"{role}{_SUCCESSES}"] / tries
    if counters.get("episodes"):
        rates["success_episode"] = counters["episode_successes"] / counters["episodes"]
    return rates
