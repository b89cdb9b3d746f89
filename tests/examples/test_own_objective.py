"""Advantages and losses of the example, worked out by hand, and what is said of functions that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from own_objective import leave_one_out, sapo

from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import play
from tests.examples.installed import ROOT, Site


def group(*rewards: float) -> list[Trajectory]:
    row = play(["right a", "right a"])[0][0]
    return [replace(row, reward=reward) for reward in rewards]


def test_a_reward_is_compared_with_the_mean_of_the_others() -> None:
    """The others of 3 have the mean 1, those of the ones have the means 2 and 2, those of 0 have 5/3."""
    assert leave_one_out(group(3.0, 1.0, 1.0)) == [2.0, -1.0, -1.0]
    assert leave_one_out(group(1.0)) == [0.0]
    assert leave_one_out(group(0.5, 0.5)) == [0.0, 0.0]
    assert leave_one_out(group(0.1 + 0.2, 0.3, 0.3)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (
            1.0,
            2.0,
            -4.0,
            -2.0,
        ),  # sigmoid(0) 4 / 1 is 2; the gradient of a token on policy is -A, as without a gate
        (1.0, -2.0, 2 * 2 / 1.05, 2.0),
        (3.0, 1.0, -4 * 0.880797, -3 * 4 * 0.104994),  # sigmoid(2) and its slope, times the ratio
    ],
)
def test_the_gate_fades_a_gradient_instead_of_cutting_it_off(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    low, high = torch.tensor([0.8]), torch.tensor([1.2])
    found = sapo(logprobs, torch.zeros(1), torch.tensor([advantage]), lowest_ratio=low, highest_ratio=high)
    (slope,) = torch.autograd.grad(found.loss.sum(), logprobs)
    assert found.loss.item() == pytest.approx(loss, abs=1e-4)
    assert slope.item() == pytest.approx(gradient, abs=1e-4)
    assert found.clipped.tolist() == [ratio == 3.0]


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str], Site]:
    """Installs a module with the functions of `NONSENSE`."""

    def installed(source: str) -> Site:
        (tmp_path / "nonsense.py").write_text(source)
        info = tmp_path / "nonsense-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nonsense\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[erl_pipeline.advantages]\nshort = nonsense:short\nendless = nonsense:endless\n"
            "constant = nonsense:constant\n"
            "[erl_pipeline.surrogates]\nsummed = nonsense:summed\n"
        )
        return Site(tmp_path)

    return installed


NONSENSE = """
from erl_pipeline.objectives.policy_gradient import Surrogate
def short(group):
    return [1.0]
def endless(group):
    return [float("inf")] * len(group)
def constant(group):
    return [1.0] * len(group)
def summed(logprobs, old_logprobs, advantages, **ranges):
    return Surrogate(-(logprobs * advantages).sum(), logprobs.detach(), logprobs < 0)
"""


def run(site: Site, *settings: str) -> tuple[int, str]:
    """Train for one small iteration; the exit status, and what was printed as errors."""
    small = (
        "iterations=1",
        "metrics=[]",
        "policy.layers=1",
        "policy.cold_start={steps: 5, demonstrations_per_step: 8, gate: 0.0}",
        "environment.training_boards=64",
        "rollouts={tasks_per_iteration: 8, group_size: 4}",
        "method.memory=off",
        "evaluation.tasks=1",
        *settings,
    )
    words = [word for setting in small for word in ("--set", setting)]
    where = ("--no-prefect", "--store", site.folder / "store")
    answer = site.erl_pipeline("train", ROOT / "configs/frozen_lake.yaml", *where, *words)
    return answer.status, " ".join((answer.output + answer.errors).split())


def test_a_function_that_gives_other_numbers_than_one_a_row_or_token_is_named(
    install: Callable[[str], Site],
) -> None:
    site = install(NONSENSE)
    for name, setting, told in (
        ("short", "advantage_normalization=short", "short gave [1.0] for the 4 trajectories of"),
        ("endless", "advantage_normalization=endless", "gave [inf, inf, inf, inf] for the 4 trajectories of"),
        ("summed", "surrogate=summed", "objective.surrogate: summed gave a loss of shape []"),
    ):
        constant = "objective.advantage_normalization=constant"  # so that there is something to train
        status, printed = run(site, constant, f"objective.{setting}", f"name={name}")
        assert status != 0
        assert told in printed


def test_a_name_that_is_not_installed_is_refused_with_those_that_are(
    install: Callable[[str], Site],
) -> None:
    status, printed = run(install(NONSENSE), "objective.surrogate=clip")
    assert status != 0
    assert "clip: no such type of surrogates; there are cispo, ppo, summed" in printed
