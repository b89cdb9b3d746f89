"""Two runs side by side: their settings, artifacts and results, and where they diverge first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from command_line.output import counted, print_json, print_line, print_table, print_wide_table
from erl_pipeline.config.shown import settings_differences
from erl_pipeline.evaluation.first_difference import ContentDifference, Divergence, Parting, first_divergence
from erl_pipeline.evaluation.history import read_history
from erl_pipeline.evaluation.iterations import (
    Measurement,
    ResultDifference,
    StageDifference,
    common_columns,
    result_differences,
    stage_differences,
)
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.forecast import iterations_text
from erl_pipeline.runs.config import run_columns
from erl_pipeline.views.report.tables import legend
from storage.artifacts.store import ArtifactStore
from storage.runs.documents import OfflineOrigin, read_origin
from storage.runs.run import RunStore

_MOST_LINES = 12


def show_first_divergence(run_a: str, run_b: str, store: str, *, json: bool) -> None:
    """Print the first artifact that the runs do not share, and the first whose content differs."""
    artifacts, runs = ArtifactStore(store), RunStore(store)
    found = first_divergence(
        artifacts, *(read_history(artifacts, runs.open(name)) for name in (run_a, run_b))
    )
    if json:
        print_json({"a": run_a, "b": run_b, "store": store, **asdict(found)})
        return
    for line in divergence_lines(found, run_a, run_b):
        print_line(line)


def divergence_lines(found: Divergence, run_a: str, run_b: str) -> list[str]:
    """What was found, as lines of text."""
    lines = [
        f"A: {run_a}",
        f"B: {run_b}",
        "",
        f"{counted(found.shared, 'artifact')} shared before they diverge.",
    ]
    if found.parting is None:
        return [*lines, "They do not diverge: every artifact is the same."]
    lines.append(f"First artifact that differs: {_where(found.parting)}")
    lines += [f"  {line}" for line in found.parting.recipe[:_MOST_LINES]]
    if len(found.parting.recipe) > _MOST_LINES:
        lines.append(f"  {len(found.parting.recipe) - _MOST_LINES} more (--json has all)")
    if found.alike:
        lines.append(f"{counted(found.alike, 'artifact')} of other recipes with the same content follow.")
    if found.at is None:
        return [*lines, "No content differs."]
    if found.content is None:
        return [*lines, f"One of them ends before {_where(found.at)}."]
    lines.append(f"First content that differs: {_where(found.at)}")
    return [*lines, *(f"  {line}" for line in content_lines(found.content))]


def content_lines(content: ContentDifference) -> list[str]:
    """Where in a file the difference is, and both values."""
    lines = [f"file {content.file}"]
    if content.row is not None:
        place = ", ".join(f"{name} {value}" for name, value in content.place.items())
        lines.append(f"row {content.row} ({place})" if place else f"row {content.row}")
    lines.append(content.what + (f", element {list(content.position)}" if content.position else ""))
    if content.count is not None:
        largest = "" if content.largest is None else f", by at most {content.largest:.3g}"
        lines.append(f"{counted(content.count, 'element')} of it differ{largest}")
    if content.a or content.b:
        lines += [f"A: {content.a}", f"B: {content.b}"]
    return lines


def _where(parting: Parting) -> str:
    place = parting.place
    when = f"iteration {place.iteration}" if place.iteration else "before the first iteration"
    ids = " and ".join("none" if each is None else each[:12] for each in (parting.a, parting.b))
    return f"{place.stage}{f' {place.key}' if place.key else ''}, {when} ({ids})"


_PAIRED = "B - A"
_HELD_OUT = "evaluate/greedy_success"
_SAME = "the same"
_WORDS = {"differs": "differ", "only A": "only A", "only B": "only B", "shared": _SAME}


def show_differences(run_a: str, run_b: str, store: str, *, json: bool) -> None:
    """Print which settings of two runs differ, which artifacts they share, and their results."""
    artifacts, runs = ArtifactStore(store), RunStore(store)
    opened = [runs.open(name) for name in (run_a, run_b)]
    settings = settings_differences(*({**run.config, "name": ""} for run in opened))
    origins = [read_origin(store, run.name) for run in opened]
    history_a, history_b = (read_history(artifacts, run) for run in opened)
    stages = stage_differences(history_a, history_b)
    columns = common_columns(*(run_columns(run) for run in opened))
    results = result_differences(artifacts, history_a, history_b, columns)
    if json:
        print_json(
            {
                "a": run_a,
                "b": run_b,
                "store": store,
                "origin_a": origins[0] and origins[0].model_dump(),
                "origin_b": origins[1] and origins[1].model_dump(),
                "settings": settings,
                "stages": [asdict(each) for each in stages],
                "results": [asdict(each) for each in results],
            }
        )
        return
    for letter, run, origin in zip("AB", opened, origins, strict=True):
        print_line(f"{letter}: {run.name}" + (f", begun {origin.describe()}" if origin else ""))
    print_line()
    print_line("Settings, A -> B:" if settings else "Settings are the same.")
    for line in settings:
        print_line(f"  {line}")
    print_line()
    print_table(_stage_table(stages), left=["iterations", "stages"])
    shared = sum(len(set(each.a) & set(each.b)) for each in stages)
    alone = [sum(map(len, ids)) - shared for ids in ([e.a for e in stages], [e.b for e in stages])]
    print_line(
        f"the same: the same artifacts. {counted(shared, 'artifact')} shared, {alone[0]:,} only in A, "
        f"{alone[1]:,} only in B"
    )
    print_line()
    different = [each for each in results if not _equal(each)]
    if same := [each.iteration for each in results if _equal(each)]:
        print_line(f"Results after iterations {iterations_text(same)}: {_SAME}")
    if not different:
        return
    groups = [_headings(column) for column in columns]
    print_wide_table([_result_cells(each, columns) for each in different], "iter", groups)
    if any(isinstance(origin, OfflineOrigin) for origin in origins):
        print_line("numbers of rollouts of an offline run are those of the stored ones: it generated none")
    print_line(legend(columns))
    print_line("[]: 95 % interval; tokens and other sums: so far; B - A: held-out tasks, one by one, with")
    print_line("95 % interval and the p value of McNemar's exact test")


def _stage_table(stages: Sequence[StageDifference]) -> list[dict[str, str]]:
    """One row for each range of iterations in which the stages share artifacts in the same way. Stages that
    only some iterations have, such as evaluations, do not part a range."""
    stretches: list[tuple[int, int, dict[str, str]]] = []
    for iteration in dict.fromkeys(each.iteration for each in stages):
        found = {each.stage: _WORDS[each.sharing] for each in stages if each.iteration == iteration}
        first, last, before = stretches[-1] if stretches else (iteration, None, {})
        alike = set(found.values()) == set(before.values()) and found.items() <= {**found, **before}.items()
        if last == iteration - 1 and alike:
            stretches[-1] = (first, iteration, {**before, **found})
        else:
            stretches.append((iteration, iteration, found))
    return [
        {"iterations": iterations_text(range(first, last + 1)), "stages": _sharing_text(found)}
        for first, last, found in stretches
    ]


def _sharing_text(found: Mapping[str, str]) -> str:
    """`the same`, or `differ: fine_tune, evaluate; the same: rollout_shard`."""
    if set(found.values()) == {_SAME}:
        return _SAME
    parts = [
        (words, [stage for stage, sharing in found.items() if sharing == words]) for words in _WORDS.values()
    ]
    return "; ".join(f"{words}: {', '.join(stages)}" for words, stages in parts if stages)


def _equal(result: ResultDifference) -> bool:
    return result.a == result.b and result.paired is None


def _headings(column: Column) -> list[str]:
    """The columns of the table that are about one number; the tasks are compared for held-out success."""
    compared = [_PAIRED] if column.name == _HELD_OUT else []
    return [f"{column.label} A", f"{column.label} B", *compared]


def _result_cells(result: ResultDifference, columns: Sequence[Column]) -> dict[str, str]:
    cells = {"iter": str(result.iteration)}
    for column in columns:
        for letter, measured in (("A", result.a), ("B", result.b)):
            cells[f"{column.label} {letter}"] = _cell(column, (measured or {}).get(column.name))
    paired = result.paired
    cells[_PAIRED] = (
        ""
        if paired is None
        else f"{paired.difference:+.3f} [{paired.low:+.3f}, {paired.high:+.3f}] p={paired.p_value:.2g}"
    )
    return cells


def _cell(column: Column, measured: Measurement | None) -> str:
    if measured is None:
        return ""
    value = column.text(measured.value)
    if measured.low is None or measured.high is None:
        return value
    return f"{value} [{column.text(measured.low)}, {column.text(measured.high)}]"
