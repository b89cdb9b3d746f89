"""Which of the settings that an arm has tried on held-out tasks are best."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median_low

from erl_pipeline.comparison.design import Design, Trial
from erl_pipeline.comparison.measures import Budgets, Curve, TokenMeasure, as_if_it_stayed, at, measure


@dataclass(frozen=True)
class Tried:
    """A trial with its scores on held-out tasks by seed, and what its runs generated. `ended_early`: one of
    its runs generates so little that it was ended before it had the tokens at which trials are compared."""

    arm: str
    settings: tuple[str, ...]
    runs: tuple[str, ...]
    scores: tuple[float, ...]
    generated_tokens: int
    ended_early: bool
    chosen: bool

    @property
    def score(self) -> float:
        """The mean over seeds."""
        return fmean(self.scores)


@dataclass(frozen=True)
class Search:
    """A whole search. `read_off_at` is the number of generated tokens at which all trials were compared."""

    measure: TokenMeasure
    read_off_at: int
    trials: tuple[Tried, ...]

    @property
    def tokens(self) -> dict[str, int]:
        """Arm -> what all its trials generated."""
        arms = dict.fromkeys(each.arm for each in self.trials)
        return {arm: sum(each.generated_tokens for each in self.trials if each.arm == arm) for arm in arms}


def search_tokens(design: Design, curves: Mapping[str, Curve]) -> int:
    """The generated tokens at which all trials are read off: one budget for all arms, as in the test, so that
    none is tuned for a shorter training than it is tested with.

    It is what the median run of the most expensive arm generated in its planned iterations. A
    trial that failed, with very short answers or very long ones, does not decide it.

    Args:
        curves: name of a trial's run -> its curve on held-out tasks.
    """
    of_arm: dict[str, list[Curve]] = {}
    for run in (run for trial in design.trials for run in trial.runs):
        of_arm.setdefault(run.arm, []).append(curves[run.config.name])
    iterations = {run.arm: run.iterations for trial in design.trials for run in trial.runs}
    return max(
        median_low(at(curve, iterations[arm]).generated_tokens for curve in runs)
        for arm, runs in of_arm.items()
    )


def judge_trials(
    design: Design, measure_name: TokenMeasure, tokens: int, curves: Mapping[str, Curve]
) -> tuple[Search, dict[str, Trial]]:
    """Score all trials of a design at a number of generated tokens, and choose the best of each arm; of equal
    ones the first. A trial that ends before counts as if its last success stayed.

    Args:
        curves: name of a trial's run -> its curve on held-out tasks.
    """

    def score(curve: Curve) -> float:
        budgets = Budgets(tokens, policy_steps=0)
        return float(getattr(measure(as_if_it_stayed(curve, tokens), budgets), measure_name))

    tried: list[Tried] = []
    chosen: dict[str, Trial] = {}
    for arm in dict.fromkeys(trial.arm for trial in design.trials):
        trials = [trial for trial in design.trials if trial.arm == arm]
        of_trial = [[curves[run.config.name] for run in trial.runs] for trial in trials]
        scores = [tuple(map(score, runs)) for runs in of_trial]
        best = max(range(len(trials)), key=lambda number: fmean(scores[number]))
        chosen[arm] = trials[best]
        tried += [
            Tried(
                arm,
                trial.settings,
                tuple(run.config.name for run in trial.runs),
                scores[number],
                sum(curve[-1].generated_tokens for curve in of_trial[number]),
                ended_early=any(curve[-1].generated_tokens < tokens for curve in of_trial[number]),
                chosen=number == best,
            )
            for number, trial in enumerate(trials)
        ]
    return Search(measure_name, tokens, tuple(tried)), chosen
