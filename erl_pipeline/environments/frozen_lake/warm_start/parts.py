"""FrozenLake's parts for the warm start."""

from __future__ import annotations

import random
from collections.abc import Iterator

from erl_pipeline.config.warm_start import DemonstrationsWarmStart
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import training_boards
from erl_pipeline.environments.frozen_lake.warm_start.demonstrations import demonstrate
from erl_pipeline.environments.frozen_lake.warm_start.questions import MEASURES, questions
from erl_pipeline.environments.tiny_parts import Demonstration
from erl_pipeline.environments.warm_start import WarmStart, WarmStartParts


def _parts(settings: FrozenLakeConfig) -> WarmStartParts | None:
    """The parts for `format: short`; None for others, and for `actions: named`, which hides nothing."""
    if settings.format != "short" or settings.actions == "named":
        return None

    def demonstrations(stream: random.Random, warm_start: DemonstrationsWarmStart) -> Iterator[Demonstration]:
        boards = training_boards(settings)
        while True:
            yield demonstrate(stream, settings, warm_start, boards)

    return WarmStartParts(
        demonstrations=demonstrations,
        questions=lambda stream, warm_start: list(questions(stream, settings, warm_start)),
        measures=MEASURES,
    )


WARM_START = WarmStart(
    parts=_parts,
    needs="format: short and actions other than named",
    # Each demonstration draws its own world and a generated board, so these settings do not change it.
    exclude=frozenset({"world_seed", "task_file"}),
)
