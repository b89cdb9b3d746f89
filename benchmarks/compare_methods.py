"""Train several methods over several seeds and compare them at equal generated tokens.

    python benchmarks/compare_methods.py configs/frozen_lake.yaml --seeds 3 --jobs 2 --store comparison

All methods make the same number of optimizer steps in an iteration: where there is no supervised stage,
its steps are made as further passes over the rollouts. RLVR samples more episodes for each task, so that
it generates about as many tokens. A method that still spends fewer is trained for more iterations, up to
the tokens of the most expensive one; there all are read off. Runs that the store holds are not trained
again. Writes `comparison.json`, a table and two charts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

from erl_pipeline.config.load import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.evaluation.comparison import (
    RunMeasures,
    iterations_to_spend,
    measure,
    seed_band,
    token_budget,
)
from erl_pipeline.evaluation.curves import across_seeds
from erl_pipeline.evaluation.history import CurvePoint, learning_curve, read_history
from erl_pipeline.views.report.charts import Chart, Series, chart_svg
from storage.artifacts.manifest import code_version, package_versions
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, PipelineError
from storage.runs.run import RunStore

METHODS = ("erl", "rlvr", "rlvr-distillation", "erl-no-reflection", "erl-no-memory", "erl-no-distillation")
CHARTS = {
    "methods": ("erl", "rlvr", "rlvr-distillation"),
    "ablations": ("erl", "erl-no-reflection", "erl-no-memory", "erl-no-distillation"),
}
RLVR_EPISODES = 1.625
"""Episodes of RLVR for each of ERL's: with 2, RLVR generated 1.19 times the tokens of ERL in 40 iterations
of `configs/frozen_lake.yaml` (three seeds each)."""

Curves = dict[str, list[list[CurvePoint]]]


@dataclass(frozen=True)
class Job:
    """One run: what to train, where, and how far."""

    config: RunConfig
    store_uri: str
    iterations: int


def method_overrides(method: str, base: RunConfig) -> list[str]:
    """Settings that turn the base configuration, which is ERL, into a method."""
    epochs, rest = divmod(base.update.optimizer_steps + base.fine_tune.steps, base.update.minibatches)
    if rest:
        raise ConfigError(
            f"update.minibatches: {base.update.minibatches} does not divide the optimizer steps of an "
            f"iteration ({base.update.optimizer_steps} + {base.fine_tune.steps}), so that methods without a "
            "supervised stage cannot make as many; allowed are divisors, such as 1"
        )
    epochs_alone = f"update.epochs={epochs}"
    wider = f"rollouts.group_size={round(RLVR_EPISODES * base.rollouts.group_size)}"
    return {
        "erl": [],
        "rlvr": ["method={type: rlvr}", wider, epochs_alone],
        "rlvr-distillation": ["method={type: rlvr, distillation: on}", wider],
        "erl-no-reflection": ["method.reflection=off"],
        "erl-no-memory": ["method.memory=off"],
        "erl-no-distillation": ["method.distillation=off", epochs_alone],
    }[method]


def train_run(job: Job) -> str:
    """Train one run to its number of iterations, in a process of its own."""
    from erl_pipeline.plan.listener import NullListener
    from erl_pipeline.runs.driver import open_run
    from erl_pipeline.runs.train import train

    with open_run(job.config, job.store_uri, NullListener(), threading.Event()) as opened:
        train(opened, job.iterations)
    return f"{job.config.name}: {job.iterations} iterations"


def train_all(jobs: Sequence[Job], workers: int) -> None:
    """Train runs side by side, each in a fresh process; the first goes alone and makes what all share."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        print(pool.submit(train_run, jobs[0]).result(), flush=True)
        for line in pool.map(train_run, jobs[1:]):
            print(line, flush=True)


def compare(
    configs: Mapping[str, Sequence[RunConfig]], store_uri: str, iterations: int, workers: int
) -> tuple[Curves, int]:
    """Train the runs, lengthen those that spent too little, and return their curves and the token budget."""
    runs = [config for seeds in configs.values() for config in seeds]
    train_all([Job(config, store_uri, iterations) for config in runs], workers)
    budget = token_budget(read_curves(configs, store_uri), iterations)
    while True:
        curves = read_curves(configs, store_uri)
        needed = [
            Job(config, store_uri, iterations_to_spend(curve, budget))
            for method, seeds in configs.items()
            for config, curve in zip(seeds, curves[method], strict=True)
            if curve[-1].generated_tokens < budget
        ]
        if not needed:
            return curves, budget
        train_all(needed, workers)


def read_curves(configs: Mapping[str, Sequence[RunConfig]], store_uri: str) -> Curves:
    """The learning curves of all runs, by method and seed."""
    store, runs = ArtifactStore(store_uri), RunStore(store_uri)
    return {
        method: [learning_curve(read_history(store, runs.open(config.name))) for config in seeds]
        for method, seeds in configs.items()
    }


def result_table(measures: Mapping[str, Sequence[RunMeasures]], seeds: Sequence[int]) -> str:
    """A Markdown table: each seed, and mean ± standard deviation over seeds."""
    names = [field.name for field in fields(RunMeasures)]
    lines = ["| method | seed | " + " | ".join(name.replace("_", " ") for name in names) + " |"]
    lines.append("|---|---|" + "---|" * len(names))
    for method, runs in measures.items():
        for seed, run in zip(seeds, runs, strict=True):
            lines.append(_row(method, str(seed), [_written(name, getattr(run, name)) for name in names]))
        if len(runs) > 1:
            summaries = [(name, across_seeds([getattr(run, name) for run in runs])) for name in names]
            cells = [
                f"**{_written(name, one.mean)}** ± {_written(name, one.sd or 0.0)}" for name, one in summaries
            ]
            lines.append(_row(f"**{method}**", "mean ± sd", cells))
    return "\n".join(lines)


def difference_table(measures: Mapping[str, Sequence[RunMeasures]]) -> str:
    """A Markdown table: the first method minus each other, seed by seed, with the t interval of the mean."""
    first, *others = measures
    lines = ["| difference | measure | by seed | mean | 95 % interval |", "|---|---|---|---|---|"]
    for other in others:
        for name in ("area_by_tokens", "success_at_budget", "area_by_iteration", "final"):
            pairs = zip(measures[first], measures[other], strict=True)
            differences = [getattr(ours, name) - getattr(theirs, name) for ours, theirs in pairs]
            mean = across_seeds(differences)
            interval = "" if mean.low is None else f"{mean.low:+.3f} to {mean.high:+.3f}"
            by_seed = ", ".join(f"{value:+.3f}" for value in differences)
            label = name.replace("_", " ")
            lines.append(_row(f"{first} - {other}", label, by_seed, f"{mean.mean:+.3f}", interval))
    return "\n".join(lines)


def comparison_chart(methods: Sequence[str], curves: Curves, budget: int, seeds: int) -> Chart:
    """Held-out success of methods against generated tokens; the band spans the seeds."""
    series = []
    for method in methods:
        band = seed_band(curves[method], budget)
        series.append(Series(method, band.tokens, band.mean, band.low, band.high))
    title = f"Held-out success, mean and range of {seeds} seeds"
    return Chart(title, "generated tokens", "success", series, (0.0, 1.0))


def main() -> None:
    arguments = _arguments()
    try:
        run_comparison(arguments)
    except PipelineError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def run_comparison(arguments: argparse.Namespace) -> None:
    """Train, measure, print and write."""
    overrides = [*arguments.set, "runner=in_process", "resources.threads=1"]
    base = load_config(arguments.config, overrides)
    iterations = arguments.iterations or base.iterations
    seeds = range(arguments.seeds)
    configs = {
        method: [
            load_config(
                arguments.config,
                [*overrides, *method_overrides(method, base), f"name={method}-seed{seed}", f"seed={seed}"],
            )
            for seed in seeds
        ]
        for method in arguments.methods
    }
    curves, budget = compare(configs, arguments.store, iterations, arguments.jobs)
    measures = {
        method: [measure(curve, iterations, budget) for curve in runs] for method, runs in curves.items()
    }
    table = f"{result_table(measures, seeds)}\n\n{difference_table(measures)}"
    print(f"\n{iterations} iterations, token budget {budget}\n\n{table}")

    arguments.output.mkdir(parents=True, exist_ok=True)
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()},
        "python": platform.python_version(),
        "code_version": code_version(),
        "packages": package_versions(),
        "iterations": iterations,
        "token_budget": budget,
        "settings": {method: runs[0].model_dump(mode="json") for method, runs in configs.items()},
        "measures": {method: [asdict(run) for run in runs] for method, runs in measures.items()},
        "curves": {method: [[asdict(p) for p in curve] for curve in runs] for method, runs in curves.items()},
    }
    (arguments.output / "comparison.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (arguments.output / "comparison.md").write_text(table + "\n", encoding="utf-8")
    for name, methods in CHARTS.items():
        if set(methods) <= set(curves):
            svg = chart_svg(comparison_chart(methods, curves, budget, len(seeds)), standalone=True)
            (arguments.output / f"{name}.svg").write_text(svg + "\n", encoding="utf-8")


def _row(*cells: str | Sequence[str]) -> str:
    flat = [cell for group in cells for cell in ([group] if isinstance(group, str) else group)]
    return "| " + " | ".join(flat) + " |"


def _written(name: str, value: float) -> str:
    """Rates with three decimals, counts and seconds without."""
    is_rate = name.startswith(("start", "final", "area", "success"))
    return f"{value:.3f}" if is_rate else f"{value:.0f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("config", type=Path, help="configuration of an ERL run, the base of all methods")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=list(METHODS),
        metavar="METHOD",
        help="which to train",
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of each method")
    parser.add_argument("--iterations", type=int, help="iterations of each run before the budget is known")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, one thread each")
    parser.add_argument("--store", default="comparison/store", help="store of the runs")
    parser.add_argument("--output", type=Path, default=Path("comparison"), help="folder of the results")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="changes the base")
    return parser.parse_args()


if __name__ == "__main__":
    main()
