"""Numbers of an extractor and its lessons that tables and reports show."""

from erl_pipeline.plan.column import ChartLine, Column, only_drawn
from erl_pipeline.stages.extractor.credit import CREDIT_EXPERIENCE
from erl_pipeline.stages.extractor.extract import EXTRACT_EXPERIENCE
from erl_pipeline.stages.extractor.extractor import UPDATE_EXTRACTOR

_HALVES = ChartLine("Guided and free attempts", "guided", "success", "Halves of the groups with experience")
HALVES = (
    Column(
        CREDIT_EXPERIENCE.name,
        "success_guided",
        "guided",
        "success rate of attempts that see experience",
        share=True,
        drawn=_HALVES,
    ),
    Column(
        CREDIT_EXPERIENCE.name,
        "success_free",
        "free",
        "success rate of attempts from which experience is withheld",
        share=True,
        drawn=ChartLine(_HALVES.chart, "free", "success"),
    ),
    Column(
        CREDIT_EXPERIENCE.name,
        "guided_minus_free",
        "gap",
        "success of guided attempts minus that of free ones",
        "+.3f",
        compare=True,
        drawn=ChartLine("What experience adds", "guided less free", "success"),
    ),
)
TRAINED = Column(
    UPDATE_EXTRACTOR.name,
    "requests_trained",
    "extractor",
    "requests that the extractor was trained on",
    ",d",
)

_ANSWERS, _SHARE = "What the extractor answers", "share of operations"
CHARTS = (
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
