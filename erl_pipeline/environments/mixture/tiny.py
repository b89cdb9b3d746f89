"""The cold start of a tiny policy for a mixture: that of all its parts, one episode of each in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.mixture.settings import MixtureConfig
from erl_pipeline.environments.mixture.tasks import parts_of
from erl_pipeline.environments.tiny_parts import Demonstration, Examination, Question, TinyParts


def tiny_parts(settings: MixtureConfig) -> TinyParts | None:
    """What the parts need together; None where one of them has no form for a tiny policy.

    A word that several parts have is one token. Attempts that are told how another one failed are
    demonstrated only where all parts demonstrate them.
    """
    found: dict[str, TinyParts] = {}
    for name, part in parts_of(settings).items():
        tiny = part.plugin.tiny(part.settings)
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
        examination=_examination({n: t.examination for n, t in found.items() if t.examination is not None}),
        retry_tokens=with_retries - longest if all_retry else 0,
    )


def tiny_view(settings: MixtureConfig) -> MixtureConfig:
    """The settings that the cold start depends on: those of each part's cold start, but not the weights."""
    parts = {
        name: settings.parts[name].model_copy(
            update={"environment": part.plugin.shown_to_tiny(part.settings), "weight": 1.0}
        )
        for name, part in parts_of(settings).items()
    }
    return settings.model_copy(update={"parts": parts})


def _examination(found: Mapping[str, Examination]) -> Examination | None:
    """One examination with the questions of all parts that have some: it reports the mean over questions."""
    if len(found) < 2:
        return next(iter(found.values()), None)

    def questions(generator: random.Random, config: ColdStartConfig) -> list[Question]:
        return [
            question
            for each in found.values()
            for question in each.questions(random.Random(generator.getrandbits(64)), config)
        ]

    names = list(dict.fromkeys(each.name for each in found.values()))
    otherwise = "; ".join(f"{name}: {each.otherwise}" for name, each in found.items())
    return Examination("_and_".join(names), questions, otherwise)
