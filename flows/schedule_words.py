"""Schedules, and how flow runs ended, as text for users."""

from __future__ import annotations

from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule

from flows.scheduled_run import SKIPPED

CANCELLED = "Cancelled"
"""Prefect's name of a state. A flow run that did not begin because the one before still ran has it too."""

_LIMIT = "concurrency limit"
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def is_skip(state: str | None, message: str | None) -> bool:
    """Whether a flow run did nothing because another one was at work."""
    return state == SKIPPED or (state == CANCELLED and _LIMIT in (message or ""))


def in_words(state: str | None, message: str | None) -> str:
    """How a flow run ended, from the name and the message of its last state."""
    if state is None:
        return ""
    if state == SKIPPED:
        return f"skipped: {(message or '').removeprefix('Skipped: ')}"
    if is_skip(state, message):
        return "skipped: the one before it was still at work"
    return f"{state.lower()}: {message}" if message else state.lower()


def schedule_in_words(schedule: SCHEDULE_TYPES) -> str:
    """A schedule as text, such as `every 6h`."""
    if isinstance(schedule, CronSchedule):
        return f"cron {schedule.cron} {schedule.timezone}"
    if isinstance(schedule, IntervalSchedule):
        seconds = round(schedule.interval.total_seconds())
        size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
        return f"every {seconds // size}{unit}"
    return "by another rule"
