"""`erl-pipeline episodes`: reading any episode of any run."""

from typing import Annotated, Literal

import typer

from command_line import options
from command_line.output import counted, print_json, print_line, print_table

app = typer.Typer(help="Read episodes: attempts, feedback, memory, reflections.", no_args_is_help=True)


@app.command("list")
def list_episodes(
    run: options.RunName,
    iteration: options.Iterations = None,
    task: Annotated[str | None, typer.Option(help="Only episodes of this task.")] = None,
    task_type: Annotated[str | None, typer.Option(help="Only this task type.")] = None,
    outcome: Annotated[
        Literal["solved", "helped", "failed", "not_scored"] | None,
        typer.Option(help="Solved at the first attempt, at a later one, never, or not scored."),
    ] = None,
    min_reward: Annotated[
        float | None, typer.Option(help="Only episodes whose best reward is at least this.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="CONTAINS", help="Only episodes in which the policy said this.")
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Episodes of evaluations, not those of training.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            max=options.LARGEST_NUMBER,
            help="Episodes to list, also with --json; the newest come first.",
        ),
    ] = 20,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """List episodes of a run: their tasks, outcomes, and the rewards of their trajectories in order."""
    from command_line.episodes import rows as episode_rows
    from command_line.selectors import beyond_end
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    span = options.iteration_span(iteration)
    artifacts, opened = ArtifactStore(store), RunStore(store).open(run)
    holders = episode_rows.run_episodes(artifacts, opened, span, held_out=held_out)
    files = episode_rows.trajectory_paths(artifacts, holders)
    wanted = episode_rows.EpisodeFilter(task, task_type, outcome, min_reward, text)
    total, shown = episode_rows.list_episodes(list(files), wanted, limit)
    if json:
        print_json({"run": run, "episodes": total, "shown": shown})
        return
    more = ", the newest first" if shown else ""
    if ends := beyond_end(opened, span):
        more = f" of iteration {iteration}: {ends}"
    print_line(f"Run {run}: {counted(total, 'episode')}{more}")
    print_table(
        [
            {
                "episode": row["episode_id"],
                "iteration": str(row["iteration"]),
                "task": row["task_id"],
                "task type": row["task_type"],
                "sample": str(row["sample_index"]),
                "outcome": row["outcome"],
                "rewards": " → ".join("–" if each is None else f"{each:g}" for each in row["rewards"]),
            }
            for row in shown
        ],
        left=("episode", "task", "task type", "outcome", "rewards"),
    )
    if total > len(shown):
        print_line(f"{total - len(shown):,} more: --limit {total}")
    if shown:
        print_line("Read one: erl-pipeline episodes show EPISODE")


@app.command()
def show(
    episode: Annotated[str, typer.Argument(metavar="EPISODE", help="Id of an episode, or its beginning.")],
    run: options.OnlyRun = None,
    prompts: Annotated[bool, typer.Option("--prompts", help="Also show the prompts.")] = False,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """Show an episode from its first attempt to its last, with rewards and what updates did with it."""
    from command_line.episodes.rows import (
        agent_calls,
        episode_training,
        find_episode,
        memory_texts,
        trajectory_paths,
    )
    from command_line.episodes.text import print_episode
    from command_line.selectors import manifests_of_run
    from storage.artifacts.store import ArtifactStore

    artifacts = ArtifactStore(store)
    manifests = manifests_of_run(artifacts, run)
    rows, holder = find_episode(trajectory_paths(artifacts, manifests), episode)
    training = episode_training(artifacts, manifests, rows[0]["episode_id"])
    memory = memory_texts(artifacts, rows)
    calls = agent_calls(artifacts, holder, rows)
    if json:
        parts = [
            {
                **row,
                "training": training.get(row["trajectory_id"], []),
                "calls": calls.get(row["trajectory_id"], []),
            }
            for row in rows
        ]
        print_json(
            {
                "episode_id": rows[0]["episode_id"],
                "artifact_id": holder.artifact_id,
                "trajectories": parts,
                "memory": memory,
            }
        )
        return
    print_episode(rows, holder, training, memory, calls, prompts=prompts)


@app.command()
def replay(
    episode: Annotated[str, typer.Argument(metavar="EPISODE", help="Id of an episode, or its beginning.")],
    run: options.OnlyRun = None,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """Let an agent play an episode again, and give it the recorded answers of the policy.

    No model is needed. It stops where the agent asks something that it did not ask before, and says what
    differs; status 1 also tells that an attempt ended otherwise.
    """
    from command_line.episodes.replaying import replay_episode

    replay_episode(episode, run, store, json)
