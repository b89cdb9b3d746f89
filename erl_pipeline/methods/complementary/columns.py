"""What tables and reports show of a run of Complementary RL."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.methods.complementary.credit import CREDIT_EXPERIENCE
from erl_pipeline.methods.complementary.evaluate import EVALUATE_WITH_EXPERIENCE
from erl_pipeline.methods.complementary.extract import EXTRACT_EXPERIENCE
from erl_pipeline.methods.complementary.settings import FIRST_ATTEMPT, ComplementaryConfig
from erl_pipeline.methods.complementary.update_extractor import UPDATE_EXTRACTOR
from erl_pipeline.plan.column import ChartLine, Column, only_drawn
from erl_pipeline.stages.columns import (
    ENTRIES,
    HELD_OUT,
    HELD_OUT_SAMPLED,
    LOSS,
    TOKENS,
    TOKENS_PER_SECOND,
    UPDATE_CHARTS,
    success_of_first_attempts,
)

_FIRST = success_of_first_attempts(FIRST_ATTEMPT, "success rate of attempts in training")
_HALVES = ChartLine("Guided and free attempts", "guided", "success", "Halves of the groups with experience")
_GUIDED = Column(
    CREDIT_EXPERIENCE.name,
    "success_guided",
    "guided",
    "success rate of attempts that see experience",
    share=True,
    drawn=_HALVES,
)
_FREE = Column(
    CREDIT_EXPERIENCE.name,
    "success_free",
    "free",
    "success rate of attempts from which experience is withheld",
    share=True,
    drawn=ChartLine(_HALVES.chart, "free", "success"),
)
_GAP = Column(
    CREDIT_EXPERIENCE.name,
    "guided_minus_free",
    "gap",
    "success of guided attempts minus that of free ones",
    "+.3f",
    compare=True,
    drawn=ChartLine("What experience adds", "guided less free", "success"),
)
_WITH_EXPERIENCE = Column(
    EVALUATE_WITH_EXPERIENCE.name,
    "greedy_success",
    "held-out with",
    "success rate of greedy first attempts on held-out tasks that see experience",
    compare=True,
    title="held-out success with experience",
    share=True,
    interval=True,
    drawn=ChartLine("Held-out success", "greedy first attempt with experience", "success"),
)
_TRAINED = Column(
    UPDATE_EXTRACTOR.name,
    "requests_trained",
    "extractor",
    "requests that the extractor was trained on",
    ",d",
)


_ANSWERS, _SHARE = "What the extractor answers", "share of operations"
_EXTRACTOR_CHARTS = (
    *(
        only_drawn(EXTRACT_EXPERIENCE.name, metric, ChartLine(_ANSWERS, line, _SHARE))
        for metric, line in (
            ("share_add", "add"),
            ("share_update", "update"),
            ("share_return", "return"),
            ("parse_failure_rate", "ill-formed"),
            ("copy_rate", "copies of a lesson"),
        )
    ),
    only_drawn(CREDIT_EXPERIENCE.name, "credit_mean", ChartLine("Credit of experience", "mean", "-1 to 1")),
    only_drawn(
        CREDIT_EXPERIENCE.name,
        "retrieval_entropy",
        ChartLine("How evenly entries are shown", "entropy", "nats"),
        only_with="credits",
    ),
    *(
        only_drawn(UPDATE_EXTRACTOR.name, metric, line, only_with="optimizer_steps")
        for metric, line in (
            ("policy_loss", ChartLine("Extractor", "loss", "loss")),
            ("clip_fraction", ChartLine("Extractor: clipped tokens", "clipped", "share")),
        )
    ),
)


def columns(settings: ComplementaryConfig) -> Sequence[Column]:
    """The columns, from left to right."""
    crl = settings.crl
    if crl is None:
        return (_FIRST, LOSS, HELD_OUT, HELD_OUT_SAMPLED, TOKENS, TOKENS_PER_SECOND, *UPDATE_CHARTS)
    return (
        _FIRST,
        _GUIDED,
        _FREE,
        _GAP,
        ENTRIES,
        *((_TRAINED,) if crl.extractor.train else ()),
        LOSS,
        HELD_OUT,
        *((_WITH_EXPERIENCE,) if crl.evaluate else ()),
        HELD_OUT_SAMPLED,
        TOKENS,
        TOKENS_PER_SECOND,
        *UPDATE_CHARTS,
        *_EXTRACTOR_CHARTS,
    )
