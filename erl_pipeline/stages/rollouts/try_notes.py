"""The stage that tries new notes on other tasks than those they were written on, before the memory keeps
them. It also tries instructions, in place of the one that the policy has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.config.memory import InstructionPer, NoteTrialConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import Task
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import ANY_TYPE, CHECKPOINT, instruction_for, instruction_texts
from erl_pipeline.stages.memory import opened_memory, written_notes
from erl_pipeline.stages.names import (
    MEMORY,
    NOTE_TRIALS,
    ROLLOUTS,
    TASKS,
    TRAINING,
    TRAJECTORIES,
    trajectory_files,
)
from erl_pipeline.stages.rollouts.counts import count_rollouts, replaced_texts
from erl_pipeline.stages.rollouts.generate_rollouts import RETRY_SECONDS
from erl_pipeline.stages.rollouts.playing import (
    EpisodeOverride,
    PlaySettings,
    play_settings,
    play_with_checkpoint,
    write_beside_attempts,
)
from erl_pipeline.stages.tasks.prepare_tasks import read_tasks
from storage.artifacts.recipe import derive_seed
from storage.tables.scored import scored

if TYPE_CHECKING:
    from erl_pipeline.environments.prompt_format import AttemptPrompts, PromptFormat
    from erl_pipeline.episodes.context import EpisodeContext, EpisodeProtocol
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from storage.tables.trajectories import Trajectory

TRIAL = "trial"
"""The role of attempts with a new note, and of those without at the same tasks."""


class NoteTrialSettings(Settings):
    """What trials depend on, besides the rollouts, the checkpoint, the tasks and the memory."""

    play: PlaySettings
    trials: NoteTrialConfig
    embedding_model: str
    """Of the memory; empty where there is none."""
    instruction_per: InstructionPer | None = Field(default=None, exclude_if=lambda per: per is None)
    """The notes are instructions, for tasks of all types or of one, and each is tried in place of that of the
    policy. Attempts with a note have the random numbers of those without, so that equal texts have equal
    rewards."""


@dataclass(frozen=True)
class NewNote:
    """A text that reflections of an iteration have written at tasks of one type."""

    task_type: str
    text: str
    reflections: tuple[Trajectory, ...]

    @property
    def successes(self) -> int:
        """How many of the reflections led to success."""
        return sum(row.success for row in self.reflections)


def plan_trials(
    planner: Planner,
    state: RunState,
    iteration: int,
    rollouts: str,
    trials: NoteTrialConfig,
    embedding_model: str = "",
    *,
    instruction_per: InstructionPer | None = None,
) -> str:
    """Plan trials of the notes, or instructions, that these rollouts have, by the policy of the state."""
    play = play_settings(planner.config).model_copy(update={"retrieval": None})
    inputs = {ROLLOUTS: rollouts, TASKS: state.tasks, **state.model_inputs(POLICY)}
    if MEMORY in state.memories:
        inputs[MEMORY] = state.memories[MEMORY]
    settings = NoteTrialSettings(
        play=play, trials=trials, embedding_model=embedding_model, instruction_per=instruction_per
    )
    return planner.add(
        TRY_NOTES,
        inputs,
        iteration=iteration,
        settings=planner.shared(settings),
        seed=derive_seed(planner.config.seed, TRY_NOTES.name),
        index={"iteration": iteration},
    )


def new_notes(reflections: Iterable[Trajectory]) -> list[NewNote]:
    """The notes of reflections, in the order in which they are tried."""
    found: defaultdict[tuple[str, str], list[Trajectory]] = defaultdict(list)
    for row in reflections:
        assert row.text is not None
        found[row.task_type, row.text].append(row)
    notes = [NewNote(*key, tuple(rows)) for key, rows in found.items()]
    return sorted(notes, key=lambda note: (-note.successes, -len(note.reflections)))


def trial_tasks(
    tasks: Sequence[Task], notes: Sequence[NewNote], count: int, seed: int
) -> dict[str, list[Task]]:
    """Task type -> the tasks on which its notes are tried; none of them is one that a note was written on."""
    written_on = {row.task_id for note in notes for row in note.reflections}
    pools: dict[str, list[Task]] = {note.task_type: [] for note in notes}
    for task in tasks:
        task_type = _note_type(task, pools)
        if task_type in pools and task.task_id not in written_on:
            pools[task_type].append(task)
    return {
        task_type: sorted(pool, key=lambda task: derive_seed(seed, task.task_id))[:count]
        for task_type, pool in pools.items()
    }


def _note_type(task: Task, notes: Container[str]) -> str:
    """The task type of the notes that are tried on a task."""
    return ANY_TYPE if ANY_TYPE in notes else task.task_type


async def play_trial(
    context: EpisodeContext,
    prompts: AttemptPrompts,
    notes: Mapping[str, Sequence[str]],
    attempts: int,
    instructions: bool,
) -> list[Trajectory]:
    """Attempt the task without a note, or with one of those of its type. The first `attempts` samples of a
    task have none, or the policy's own one if notes are `instructions`; the next ones the first note, and so
    on; that is their `revision_index`."""
    from erl_pipeline.episodes.attempt import play_attempt
    from erl_pipeline.episodes.context import TurnKey

    number, sample = divmod(context.identity.sample_index, attempts)
    task_type = _note_type(context.identity.task, notes)
    own: list[str] = []
    if instructions:
        context = replace(context, identity=replace(context.identity, seeded_as=(sample, 0)))
        own = [] if context.instruction is None else [context.instruction]
    shown = [notes[task_type][number - 1]] if number else own
    place = TurnKey(TRIAL, phase=0, revision=number)
    attempt = await play_attempt(
        context, place, lambda instructions, observation: prompts.attempt(instructions, observation, shown)
    )
    return [attempt.row(context, place, parent=None)]


def _compute(call: StageCall[NoteTrialSettings]) -> StageResult:
    """Write the attempts, and for each note what they show."""
    from erl_pipeline.episodes.play import protocol_of
    from storage.memory.trials import NOTE_TRIALS as TABLE
    from storage.tables.parquet import write_rows
    from storage.tables.trajectories import read_trajectories, write_trajectories

    play, trials = call.settings.play, call.settings.trials
    method = plugins("methods")[play.episode.type].value
    spec = method.reflecting(play.episode)
    environment = plugins("environments")[play.environment.type].value
    rows = read_trajectories(trajectory_files(call.inputs[ROLLOUTS], call.resources.store))
    written = written_notes(rows, spec.reflection, spec.attempt)
    if call.settings.instruction_per == "policy":
        written = [replace(row, task_type=ANY_TYPE) for row in written]
    notes = _unknown(call, [note for note in new_notes(written) if note.successes or trials.failures])
    tried = notes[: trials.notes]
    iteration = call.index["iteration"]
    training = read_tasks(call.inputs[TASKS], TRAINING, call.resources)
    tasks = trial_tasks(training, tried, trials.tasks, derive_seed(call.seed, iteration))
    texts = {task_type: [note.text for note in tried if note.task_type == task_type] for task_type in tasks}
    drawn = [task for of_type in tasks.values() for task in of_type]
    samples = [range(trials.attempts * (1 + len(texts[_note_type(task, texts)]))) for task in drawn]
    call.progress.begin(sum(map(len, samples)), "episodes")

    def with_prompts(own: PromptFormat | None) -> EpisodeProtocol:
        return partial(
            play_trial,
            prompts=own or spec.prompts,
            notes=texts,
            attempts=trials.attempts,
            instructions=call.settings.instruction_per is not None,
        )

    played = play_with_checkpoint(
        call,
        play,
        drawn,
        samples,
        iteration=iteration,
        run_seed=call.seed,
        with_memory=False,
        own=EpisodeOverride(
            protocol_of(environment, play.environment, with_prompts),
            {TRIAL: method.role_limits(play.episode, play.sampling)[spec.retry]},
        ),
    )
    judged = []
    for place, note in enumerate(notes):
        shown = None
        if place < trials.notes:
            number = 1 + texts[note.task_type].index(note.text)
            shown = trial_rewards(note.task_type, number, played.rows)
        judged.append(_trial_row(note, shown, trials.margin))
    counters = {
        **count_rollouts(played.rows),
        **replaced_texts([played]),
        "new_notes": len(notes),
        "notes_tried": sum(row["reward"] is not None for row in judged),
        "notes_kept": sum(row["kept"] for row in judged),
    }
    return StageResult(
        counters=counters,
        rows={
            TRAJECTORIES: write_trajectories(call.folder / TRAJECTORIES, played.rows),
            NOTE_TRIALS: write_rows(call.folder / NOTE_TRIALS, judged, TABLE),
            **write_beside_attempts(call.folder, [played]),
        },
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        determinism=played.determinism,
        environment=played.environment,
    )


def _unknown(call: StageCall[NoteTrialSettings], notes: Sequence[NewNote]) -> list[NewNote]:
    """The notes that the memory does not have; of instructions, those that the policy does not have."""
    from storage.memory.entries import text_key

    if call.settings.instruction_per is not None:
        own = instruction_texts(call.inputs[CHECKPOINT])
        return [note for note in notes if note.text != instruction_for(own, note.task_type)]
    if MEMORY not in call.inputs:
        return list(notes)
    memory = opened_memory(call.resources, call.settings.embedding_model)
    view = memory.at(call.inputs[MEMORY].manifest.artifact_id)
    known = view.with_texts([text_key(note.task_type, note.text) for note in notes])
    return [note for note in notes if text_key(note.task_type, note.text) not in known]


def _trial_row(note: NewNote, shown: TrialRewards | None, margin: float) -> dict[str, Any]:
    """A row of the table. `shown`: what the attempts showed; None for a note that was not tried."""
    return {
        "task_type": note.task_type,
        "text": note.text,
        "source_trajectory_id": note.reflections[0].trajectory_id,
        "copies": len(note.reflections),
        "successes": note.successes,
        "task_ids": [] if shown is None else shown.task_ids,
        "reward": None if shown is None else shown.reward,
        "reward_without": None if shown is None else shown.without,
        "kept": shown is not None and shown.reward - shown.without > margin,
    }


@dataclass(frozen=True)
class TrialRewards:
    """The mean reward of attempts with a note and of those without, over the same tasks; each task counts as
    much as the others."""

    task_ids: Sequence[str]
    reward: float
    without: float


def trial_rewards(task_type: str, number: int, attempts: Sequence[Trajectory]) -> TrialRewards | None:
    """What attempts show of note `number` of a task type, over the tasks with scored attempts of both kinds;
    None if there is none."""
    rewards: defaultdict[str, dict[int, list[float]]] = defaultdict(dict)
    for row in scored(attempts):
        if task_type in (row.task_type, ANY_TYPE) and row.revision_index in (0, number):
            rewards[row.task_id].setdefault(row.revision_index, []).append(row.reward)
    both = {task: found for task, found in rewards.items() if len(found) == 2}
    if not both:
        return None
    reward, without = (fmean(fmean(found[each]) for found in both.values()) for each in (number, 0))
    return TrialRewards(list(both), reward, without)


TRY_NOTES = Stage(
    name="try_notes",
    version=8,
    output="trajectories",
    settings=NoteTrialSettings,
    compute=_compute,
    code=("environment", "method", "engine"),
    needs="sampling",
    retry_seconds=RETRY_SECONDS,
)
