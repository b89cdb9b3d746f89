"""The cold start of a tiny policy for a mixture: that of all its parts, one episode of each in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.mixture.settings import MixtureConfig
from erl_pipeline.environments.mixture.tasks import parts_of
from erl_pipeline.environments.tiny_parts import Demonstration, Examination, ExamQuestion, TinyParts


def tiny_parts(settings: MixtureConfig) -> TinyParts | None:
    """What the parts need together; None where one of them has no form for a tiny policy.

    A word that several parts have is one token. Attempts that are told how another one failed are
    demonstrated only where all parts demonstrate them.
    """
    found: dict[str, TinyParts] = {}
    for name, part in parts_of(settings).items():
        tiny = part.plugin.tiny.parts(part.settings)
        if tiny is None:
            return None
        found[name] = tiny

    def demonstrations(
        generator: random.Random, config: ColdStartConfig
    ) -> Iterator[Sequence[Demonstration]]:
        streams = [
            tiny.demonstrations(random.Random(generator.getrandbits(64)), config) for tiny in found.values()
        ]
        while True:
            for stream in streams:
                yield next(stream)

    longest = max(tiny.context_length for tiny in found.values())
    with_retries = max(tiny.context_length + tiny.retry_tokens for tiny in found.values())
    all_retry = all(tiny.retry_tokens for tiny in found.values())
    return TinyParts(
        words=tuple(dict.fromkeys(word for tiny in found.values() for word in tiny.words)),
        context_length=longest if all_retry else with_retries,
        demonstrations=demonstrations,
        examinations=_examinations(found),
        retry_tokens=with_retries - longest if all_retry else 0,
    )


def tiny_view(settings: MixtureConfig) -> MixtureConfig:
    """The settings that the cold start depends on: those of each part's cold start, but not the weights."""
    parts = {
        name: settings.parts[name].model_copy(
            update={"environment": part.plugin.tiny.shown(part.settings), "weight": 1.0}
        )
        for name, part in parts_of(settings).items()
    }
    return settings.model_copy(update={"parts": parts})


def _examinations(found: Mapping[str, TinyParts]) -> list[Examination]:
    """The examinations of all parts. Those of one name are one, with the questions of all parts that have it:
    it reports the mean over questions."""
    by_name: dict[str, dict[str, Examination]] = {}
    for part, tiny in found.items():
        for each in tiny.examinations:
            by_name.setdefault(each.name, {})[part] = each
    return [_together(same) for same in by_name.values()]


def _together(same: Mapping[str, Examination]) -> Examination:
    """The examinations of several parts, by the part's name, as one."""
    first, *others = same.values()
    if not others:
        return first

    def questions(generator: random.Random, config: ColdStartConfig) -> list[ExamQuestion]:
        return [
            question
            for each in same.values()
            for question in each.questions(random.Random(generator.getrandbits(64)), config)
        ]

    otherwise = "; ".join(f"{part}: {each.otherwise}" for part, each in same.items())
    return Examination(first.name, questions, otherwise)
