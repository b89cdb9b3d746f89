"""Which of the settings that an arm has tried on held-out tasks are best."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from erl_pipeline.comparison.design import Design, Trial
from erl_pipeline.comparison.measures import Budgets, Curve, Measure, measure


@dataclass(frozen=True)
class Tried:
    """A trial with its scores on held-out tasks by seed, and what its runs generated."""

    arm: str
    settings: tuple[str, ...]
    runs: tuple[str, ...]
    scores: tuple[float, ...]
    generated_tokens: int
    chosen: bool

    @property
    def score(self) -> float:
        """The mean over seeds."""
        return fmean(self.scores)


@dataclass(frozen=True)
class Search:
    """A whole search. `budgets` maps an arm to the tokens and steps at which its trials were read off."""

    measure: Measure
    budgets: Mapping[str, Budgets]
    trials: tuple[Tried, ...]

    def tokens(self, arm: str) -> int:
        """What all trials of an arm generated."""
        return sum(each.generated_tokens for each in self.trials if each.arm == arm)


def judge_trials(
    design: Design, measure_name: Measure, curves: Mapping[str, Curve]
) -> tuple[Search, dict[str, Trial]]:
    """Score all trials of a design, and choose the best of each arm; of equal ones the first.

    Trials of an arm are read off at what its cheapest run spent, so that all have the same budget and none
    has to be made longer.

    Args:
        curves: name of a trial's run -> its curve on held-out tasks.
    """
    tried: list[Tried] = []
    budgets: dict[str, Budgets] = {}
    chosen: dict[str, Trial] = {}
    for arm in dict.fromkeys(trial.arm for trial in design.trials):
        trials = [trial for trial in design.trials if trial.arm == arm]
        of_trial = [[curves[run.config.name] for run in trial.runs] for trial in trials]
        ends = [curve[-1] for runs in of_trial for curve in runs]
        budgets[arm] = Budgets(
            min(end.generated_tokens for end in ends), min(end.policy_steps for end in ends)
        )
        scores = [
            tuple(getattr(measure(curve, budgets[arm]), measure_name) for curve in runs) for runs in of_trial
        ]
        best = max(range(len(trials)), key=lambda number: fmean(scores[number]))
        chosen[arm] = trials[best]
        tried += [
            Tried(
                arm,
                trial.settings,
                tuple(run.config.name for run in trial.runs),
                scores[number],
                sum(curve[-1].generated_tokens for curve in of_trial[number]),
                chosen=number == best,
            )
            for number, trial in enumerate(trials)
        ]
    return Search(measure_name, budgets, tuple(tried)), chosen
