"""Iterations, groups, episodes and tokens of a run."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

import polars as pl
from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from command_line.ui import rows as stored_rows
from command_line.ui.episode import MEASURES, Measure, read_episode, token_strip
from command_line.ui.filters import FILTERS, AddressError, Filter
from command_line.ui.pages import ARunVisit, Crumb, address
from command_line.ui.row_lists import all_rows, neighbours, read_list, rewards_by_iteration
from erl_pipeline.evaluation.iterations import IterationRow
from erl_pipeline.evaluation.samples import count_samples
from storage.errors import InputError
from storage.tables.trajectories import said, scan_trajectories

router = APIRouter(prefix="/runs/{name}")

Page = Annotated[int, Query(ge=1)]
_USUAL_FILTERS = 12
_GROUP_SORTS = ("spread", "mean", "rows", "trained", "mismatch")


@router.get("/rows")
def rows(here: ARunVisit, page: Page = 1) -> Response:
    """The rows of a run that meet the filters of the address."""
    request, run, name = here.request, here.run, here.name
    listed = read_list(request.url.query)
    held_out = listed.held_out
    if here.wants_csv:
        whole = all_rows(here.stored, run, listed)
        return here.csv(
            f"{name}-{'evaluations' if held_out else 'episodes'}", whole.columns, whole.to_dicts()
        )
    found = stored_rows.find_rows(here.stored, run, listed, page)
    words = ["episodes", "list", name, *(["--held-out"] if held_out else [])]
    asked = {each.column: each.asked for each in listed.filters}
    of_task = not asked.get("task_id", "!").startswith(("!", "~"))
    return here.page(
        "rows.html.j2",
        "Evaluations" if held_out else "Episodes",
        [Crumb("rows", str(request.url.path))],
        commands=[here.command("Episodes in the terminal", *words)],
        found=found,
        within=list_query(request.query_params.multi_items()),
        by_iteration=rewards_by_iteration(here.stored, run, listed) if of_task else None,
        asked=asked,
        iteration=listed.iteration,
        sort=listed.sort,
        rising=listed.rising,
        held_out=held_out,
        sortable=stored_rows.SORTABLE,
        usual=list(FILTERS)[:_USUAL_FILTERS],
        further=list(FILTERS)[_USUAL_FILTERS:],
        kinds=FILTERS,
    )


@router.get("/iterations/{iteration}")
def iteration_page(
    iteration: int,
    here: ARunVisit,
    role: str = "",
    sort: str = "spread",
    rising: bool = False,
    page: Page = 1,
) -> HTMLResponse:
    """The groups of an iteration, the counts of its samples, and its artifacts."""
    run, name, stored = here.run, here.name, here.stored
    records = run.of_iteration(iteration)
    if not records:
        raise InputError(f"Run {name} has no iteration {iteration}; it has {run.done} of {run.total}.")
    if sort not in _GROUP_SORTS:
        raise AddressError(f"Groups cannot be sorted by {sort}; they can by {', '.join(_GROUP_SORTS)}.")
    span = (iteration, iteration)
    groups = here.kept(
        f"groups {iteration}", lambda: stored_rows.groups_of(stored_rows.joined_rows(stored, run, span))
    )
    roles = list(dict.fromkeys(group["role"] for group in groups))
    groups = [group for group in groups if role in ("", group["role"])]
    groups = stored_rows.ordered_groups(groups, sort, rising=rising)
    pages = stored_rows.page_count(len(groups))
    page = min(page, pages)
    samples = here.kept(f"samples {iteration}", lambda: count_samples(stored.artifacts, run.run, span))
    row = next((each for each in run.rows if each.iteration == iteration), None)
    numbers = [
        (column, row.values[column.name])
        for column in run.columns
        if row is not None and column.name in row.values
    ]
    commands = [
        here.command("Episodes of this iteration", "episodes", "list", name, "--iteration", str(iteration))
    ]
    learning = next((each for each in records if each.kind == "checkpoint"), None)
    if iteration and learning is not None:
        again = ["replay", name, "--from", learning.stage, "--iteration", str(iteration)]
        commands += [
            here.command(
                "Train again from here, with other settings", *again, "--set", "KEY=VALUE", "--name", "NAME"
            ),
            here.command("Compute it again, compare bytes", *again),
        ]
    return here.page(
        "iteration.html.j2",
        f"Iteration {iteration}",
        [_iteration_crumb(here, iteration)],
        commands=commands,
        iteration=iteration,
        neighbours=_neighbours(run.rows, iteration),
        numbers=numbers,
        samples=samples,
        records=records,
        groups=groups[(page - 1) * stored_rows.PAGE_ROWS : page * stored_rows.PAGE_ROWS],
        group_count=len(groups),
        group_pages=pages,
        page_number=page,
        role=role,
        roles=roles,
        sort=sort,
        rising=rising,
    )


@router.get("/iterations/{iteration}/group")
def group_page(iteration: int, id: str, here: ARunVisit) -> HTMLResponse:
    """The rows of a task and role, apart from each other where their rewards are."""
    name = here.name
    joined = stored_rows.joined_rows(here.stored, here.run, (iteration, iteration))
    found = stored_rows.read_page(joined, stored_rows.RowList((Filter("group_id", id),), sort="reward"), 1)
    if not found.rows:
        raise InputError(f"Iteration {iteration} of run {name} has no group {id}.")
    compared: dict[str | None, list[dict[str, Any]]] = {}
    config = here.run.config
    split = config is None or config.objective.advantages_per == "subgroup"
    for row in found.rows:
        compared.setdefault(row["subgroup"] if split else None, []).append(row)
    words = ["episodes", "list", name, "--iteration", str(iteration), "--task", found.rows[0]["task_id"]]
    return here.page(
        "group.html.j2",
        f"Group of {found.count}",
        [_iteration_crumb(here, iteration), here.crumb("group", "iterations", iteration, "group", id=id)],
        commands=[here.command("Episodes of this task", *words)],
        iteration=iteration,
        group_id=id,
        found=found,
        compared=compared,
        within=urlencode({"iteration": iteration, "group_id": id, "sort": "reward"}),
    )


@router.get("/iterations/{iteration}/episodes/{episode}")
def episode_page(iteration: int, episode: str, here: ARunVisit, within: str = "") -> HTMLResponse:
    """An episode, with its trajectories side by side. `within` is the query of the list that one came from,
    else it is that of the episode's iteration."""
    name = here.name
    shown = read_episode(here.stored, here.run, iteration, episode)
    held_out = {"held_out": "true"} if shown.holder.kind == "evaluation" else {}
    listed = within or urlencode({"iteration": iteration, **held_out})
    before, after = neighbours(here.stored, here.run, read_list(listed), shown.episode_id)
    return here.page(
        "episode.html.j2",
        f"Episode {shown.episode_id[:12]}",
        [
            _iteration_crumb(here, iteration),
            here.crumb("episode", "iterations", iteration, "episodes", shown.episode_id),
        ],
        commands=[
            here.command("Read it in the terminal", "episodes", "show", shown.episode_id, "--run", name),
            here.command(
                "Where its first attempt went", "lineage", "downstream", name, shown.rows[0]["trajectory_id"]
            ),
        ],
        iteration=iteration,
        episode=shown,
        neighbours=(before, after),
        within=within,
        list_address=f"{address('runs', name, 'rows')}?{listed}",
        held_out=held_out.get("held_out", ""),
    )


@router.get("/iterations/{iteration}/trajectories/{trajectory}/tokens")
def tokens(iteration: int, trajectory: str, here: ARunVisit, measure: Measure | None = None) -> HTMLResponse:
    """The part of a page that shows the tokens of a trajectory."""
    run = here.run
    strip = token_strip(here.stored, run, iteration, trajectory, measure)
    return here.pages.part(
        "tokens.html.j2", strip=strip, measures=MEASURES, run=run, iteration=iteration, trajectory=trajectory
    )


@router.get("/iterations/{iteration}/trajectories/{trajectory}/text")
def text(iteration: int, trajectory: str, here: ARunVisit, held_out: bool = False) -> HTMLResponse:
    """The part of a page with the policy's messages in a trajectory."""
    files = list(stored_rows.row_files(here.stored, here.run, (iteration, iteration), held_out=held_out))
    found = scan_trajectories(files).filter(pl.col("trajectory_id") == trajectory)
    texts = found.select(said=said(), feedback="feedback").collect().to_dicts()
    if not texts:
        raise InputError(f"iteration {iteration} of run {here.name} has no trajectory {trajectory}.")
    return here.pages.part("text.html.j2", row=texts[0])


def list_query(given: Iterable[tuple[str, str]]) -> str:
    """What describes a list of rows among an address's parameters."""
    kept = [(name, value) for name, value in given if value and name not in ("page", "format")]
    return urlencode(kept)


def _iteration_crumb(here: ARunVisit, iteration: int) -> Crumb:
    return here.crumb(f"iteration {iteration}", "iterations", iteration)


def _neighbours(rows: Sequence[IterationRow], iteration: int) -> tuple[int | None, int | None]:
    """The iterations before and after one."""
    numbers = [row.iteration for row in rows]
    place = numbers.index(iteration) if iteration in numbers else -1
    before = numbers[place - 1] if place > 0 else None
    after = numbers[place + 1] if 0 <= place < len(numbers) - 1 else None
    return before, after
