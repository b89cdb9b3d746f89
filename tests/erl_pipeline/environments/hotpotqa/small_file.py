"""A small file of questions in HotpotQA's official distractor format."""

import json
from pathlib import Path
from typing import Any

from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tasks import training_tasks
from erl_pipeline.environments.interface import Task

RIVER = ["River Ode", ["The River Ode is in Norland.", " It flows past the town of Bragg."]]
BRAGG = ["Bragg", ["Bragg is a town.", " Its mayor is Anna Holm."]]
HOLM = ["Holm Castle", ["Holm Castle stands on a hill in Sudland."]]
MAYOR: dict[str, Any] = {
    "_id": "q-mayor",
    "question": "Who is the mayor of the town that the River Ode flows past?",
    "answer": "Anna Holm",
    "supporting_facts": [["River Ode", 1], ["Bragg", 1]],
    "context": [HOLM, RIVER, BRAGG],
    "type": "bridge",
    "level": "easy",
}


def question(number: int) -> dict[str, Any]:
    """A question about two pages of its own."""
    return {
        "_id": f"q-{number}",
        "question": f"Is peak {number} higher than peak {number}b?",
        "answer": "yes",
        "supporting_facts": [[f"Peak {number}", 0], [f"Peak {number}b", 0]],
        "context": [
            [f"Peak {number}", [f"Peak {number} is {number} miles high."]],
            [f"Peak {number}b", [f"Peak {number}b is low."]],
        ],
        "type": "comparison",
        "level": "medium",
    }


def write(folder: Path, *questions: Any) -> str:
    """Writes the questions; returns the path of the file, as a setting has it."""
    file = folder / "questions.json"
    file.write_text(json.dumps(questions or [MAYOR, *map(question, range(9))]))
    return str(file)


def mayor_task(config: HotpotQAConfig) -> Task:
    """The task of the mayor; the splits of the file are made so that it is a training task."""
    return next(task for task in training_tasks(config, 0) if task.task_id == "hotpotqa-q-mayor")
