"""What is checked of a run's environment before it is trained: whether it gives the tasks that are asked for,
and whether an examination found it fit."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import MessagesWarmStart
from erl_pipeline.config.prompts import PromptTemplates
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.runner import InProcessConfig, Runner, RunnerCall, run_in_process
from erl_pipeline.plan.sources import examined_sources
from erl_pipeline.plan.stage import Listener, StageOutcome, WorkerSettings
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.qualification.check import Qualification, parse_qualification
from erl_pipeline.stages.tasks.draw_tasks import draw_tasks
from erl_pipeline.stages.tasks.environment_stages import (
    QUALIFICATION,
    QUALIFY_ENVIRONMENT,
    plan_qualification,
)
from erl_pipeline.stages.tasks.held_out import KeptApart, refuse_held_out
from erl_pipeline.stages.tasks.prepare_tasks import PREPARE_TASKS
from erl_pipeline.stages.training.warm_start import MESSAGES
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, StoreError
from storage.runs.run import Run


def require_tasks(config: RunConfig, *, drawn: bool = True) -> None:
    """Raise InputError or ConfigError if there are fewer training or held-out tasks than are asked for, or if
    one of them is wrong. Nothing is checked where it takes long to list the tasks.

    Args:
        drawn: whether iterations draw tasks; those of a run on stored rollouts do not.
    """
    plugin = plugins("environments")[config.environment.type].value
    environment = config.environment
    if not plugin.splits.quick_to_list(environment):
        return
    training = plugin.training_tasks(environment, config.seed)
    held_out = plugin.held_out_tasks(environment, config.seed, config.evaluation.tasks)
    refuse_held_out(training, KeptApart(plugin, environment, config.seed, held_out))
    if drawn:
        weights = {name: part.weight for name, part in plugin.parts(environment).items()}
        draw_tasks(training, config.rollouts.tasks_per_iteration, config.seed, 1, weights)


def require_tasks_of(plan: Plan, config: RunConfig, store: ArtifactStore) -> Sequence[str]:
    """As `require_tasks`, for a plan; nothing is checked if its tasks are in the store already. Also raise
    InputError where a conversation of a warm start that is still to be made asks a question that is kept from
    training.

    Returns, in sentences, what of the environment's files is left out, and prompts without effect.
    """
    warm_starts = [node.artifact_id for node in plan.nodes if node.stage is MESSAGES]
    if warm_starts and warm_starts[0] not in store.ids(MESSAGES.name):
        refuse_held_out_conversations(config)
    tasks = [node.artifact_id for node in plan.nodes if node.stage is PREPARE_TASKS]
    if not tasks or tasks[0] in store.ids(PREPARE_TASKS.name):
        return ()
    require_tasks(config, drawn=any(node.stage.output == "rollouts" for node in plan.nodes))
    return [*sentences_left_out(config), *templates_without_effect(config)]


def refuse_held_out_conversations(config: RunConfig) -> None:
    """Raise InputError, naming the row, where the file of the warm start asks a question that is kept from
    training. Only questions can be found in conversations, not boards."""
    from erl_pipeline.stages.training.conversations import read_conversations
    from storage.texts import StorableTexts

    warm_start = policy_traits(config.policy).warm_start
    assert isinstance(warm_start, MessagesWarmStart)
    path = Path(warm_start.file)
    plugin = plugins("environments")[config.environment.type].value
    kept = KeptApart(plugin, config.environment, config.seed, [])
    for number, conversation in enumerate(read_conversations(path, StorableTexts()), start=1):
        same = kept.asked(conversation.messages)
        if same is not None:
            raise InputError(
                f"policy.warm_start.file: {path}, row {number} asks {same}: a policy would be evaluated on "
                "what it was trained on; leave the row out"
            )


def sentences_left_out(config: RunConfig) -> Sequence[str]:
    """What of the environment's files is no task, and why; nothing where it takes long to list the tasks."""
    plugin = plugins("environments")[config.environment.type].value
    if not plugin.splits.quick_to_list(config.environment):
        return ()
    sentences: Sequence[str] = plugin.splits.left_out(config.environment)
    return sentences


def templates_without_effect(config: RunConfig) -> list[str]:
    """A sentence that names the templates of prompts that the configuration changes, where none is read since
    the environment has prompts of its own."""
    templates = getattr(config.method, "prompts", None)
    if not isinstance(templates, PromptTemplates):
        return []
    usual, given = type(templates)().model_dump(), templates.model_dump()
    changed = [name for name, template in given.items() if template != usual[name]]
    environment = plugins("environments")[config.environment.type].value
    of_parts = [part.plugin.prompts(part.settings) for part in environment.parts(config.environment).values()]
    if not changed or None in (of_parts or [environment.prompts(config.environment)]):
        return []
    return [
        f"method.prompts.{', '.join(changed)}: without effect, since environment {config.environment.type} "
        "with these settings has prompts of its own"
    ]


def qualify_environment(
    config: RunConfig,
    store_uri: str,
    tasks: int,
    answers: int,
    listener: Listener,
    stop: threading.Event,
) -> tuple[StageOutcome, Qualification]:
    """Examine the environment of a configuration, with its seed. A stored examination with the same settings
    is reused.

    Raises InputError for files that cannot be read and for an environment that agents play, and `Interrupted`
    once `stop` is set.
    """
    if plugins("environments")[config.environment.type].value.has_agents(config.environment):
        raise InputError(
            f"environment.type: {config.environment.type} is played by an agent, whose turns nobody else can "
            "take; `erl-pipeline env try` lets it play once"
        )
    planner = Planner(config, examined_sources(config))
    plan_qualification(planner, tasks, answers)
    store = ArtifactStore(store_uri, config.resources.threads, config.store.cache())
    worker = WorkerSettings(store_uri, config.name, config.resources.threads, cache=config.store.cache())
    found: list[StageOutcome] = []

    def record(_planned: PlannedStage, outcome: StageOutcome) -> None:
        found.append(outcome)

    def body(runner: Runner) -> None:
        execute(
            Plan(tuple(planner.nodes), ()),
            Execution(store, runner, worker, config.resources, listener, record, stop.is_set),
        )

    run_in_process(InProcessConfig(), RunnerCall(worker, config.resources, listener, stop), body)
    outcome = next(each for each in found if each.stage == QUALIFY_ENVIRONMENT.name)
    document = store.open(outcome.artifact_id).path(QUALIFICATION).read_text(encoding="utf-8")
    return outcome, parse_qualification(document)


def find_qualification(store: ArtifactStore, tasks: Recipe) -> tuple[Manifest, Qualification] | None:
    """The newest examination of a run's environment: one with the same settings, files and code, whatever its
    seed and number of tasks.
    """
    of_it: list[Manifest] = []
    for artifact_id in store.ids(QUALIFY_ENVIRONMENT.name):
        # A damaged examination is ignored; the next one makes it again.
        with suppress(StoreError):
            manifest = store.find(artifact_id, QUALIFY_ENVIRONMENT.name)
            if manifest is not None and _examines(manifest, tasks):
                of_it.append(manifest)
    if not of_it:
        return None
    newest = max(of_it, key=lambda manifest: manifest.finished_at)
    document = store.open_file(newest, QUALIFICATION).read_text(encoding="utf-8")
    return newest, parse_qualification(document)


def state_of_qualification(store: ArtifactStore, tasks: Recipe) -> tuple[bool, str]:
    """Whether the environment of a run is qualified in this store, and a sentence that says so."""
    name = tasks.settings["environment"]["type"]
    found = find_qualification(store, tasks)
    if found is None:
        return False, f"environment {name} was never qualified in this store as it is now configured"
    manifest, qualification = found
    if qualification.failed:
        failed = ", ".join(qualification.failed)
        return False, f"environment {name} failed its qualification {manifest.artifact_id[:12]}: {failed}"
    return True, f"environment {name} is qualified (artifact {manifest.artifact_id[:12]})"


def tasks_of_plan(plan: Plan) -> Recipe | None:
    """The recipe of the tasks that a run trains on; None if no stage of the plan makes them."""
    found = (node.recipe for node in plan.nodes if node.stage.output == "tasks" and not node.iteration)
    return next((recipe for recipe in found if "environment" in recipe.settings), None)


def tasks_of_run(store: ArtifactStore, run: Run) -> Recipe | None:
    """The recipe of the tasks that a stored run trains on; None if it has none."""
    for entry in run.stages():
        if entry.kind == "tasks" and not entry.iteration:
            manifest = store.find(entry.artifact_id, entry.stage)
            if manifest is not None and "environment" in manifest.settings:
                return manifest.recipe
    return None


def _examines(manifest: Manifest, tasks: Recipe) -> bool:
    """Whether an examination is of the environment of these tasks; its own code has more than theirs."""
    same = all(manifest.settings[name] == tasks.settings[name] for name in ("environment", "files"))
    return same and manifest.code.items() >= tasks.code.items()
