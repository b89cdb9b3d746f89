"""What people say about answers, as records."""

from __future__ import annotations

from datetime import UTC, datetime

from erl_pipeline.episodes.gateway.api import RequestRefused
from erl_pipeline.serving.known import KnownEpisode, KnownTraffic, feedback_id_of, said_by
from erl_pipeline.serving.requests import FeedbackRequest
from erl_pipeline.serving.settings import TEXTS, ServingSettings
from storage.serving.traffic import Feedback


def feedback_record(
    settings: ServingSettings, traffic: KnownTraffic, tenant: str, given: FeedbackRequest
) -> tuple[str, Feedback | None]:
    """The id of a piece of feedback, and the record of it; None where it was taken before.

    Raises `RequestRefused` for an id that the tenant does not have, an undeclared metric or value, and a key
    of idempotency that was used for something else.
    """
    episode = _meant(traffic, tenant, given)
    reward = _reward(settings, given)
    record = Feedback(
        feedback_id=feedback_id_of(tenant, given.idempotency_key),
        episode_id=episode.episode_id,
        call_id=given.call_id,
        tenant=tenant,
        user=episode.user,
        metric=given.metric,
        value=given.value,
        reward=reward,
        source=given.source,
        received=datetime.now(UTC),
    )
    known = traffic.said(record.feedback_id)
    if known is not None and known != said_by(record):
        what = "idempotency_key: other feedback was given with this key"
        raise RequestRefused(what, "idempotency_key", "idempotency_key_reused", 409)
    return record.feedback_id, record if known is None else None


def known_episode(traffic: KnownTraffic, tenant: str, episode_id: str) -> KnownEpisode:
    """A tenant's episode. Raises `RequestRefused` where there is none."""
    found = traffic.episode(tenant, episode_id)
    if found is None:
        raise RequestRefused(f"there is no episode {episode_id}", None, "not_found", 404)
    return found


def _meant(traffic: KnownTraffic, tenant: str, given: FeedbackRequest) -> KnownEpisode:
    if given.call_id is None and given.episode_id is not None:
        return known_episode(traffic, tenant, given.episode_id)
    if given.call_id is None or given.episode_id is not None:
        raise RequestRefused("give either call_id or episode_id", "call_id")
    found = traffic.episode_of_call(tenant, given.call_id)
    if found is None:
        raise RequestRefused(f"there is no call {given.call_id}", None, "not_found", 404)
    return found


def _reward(settings: ServingSettings, given: FeedbackRequest) -> float | None:
    """The value as a reward; None for a text."""
    if given.metric in TEXTS:
        if not isinstance(given.value, str):
            raise RequestRefused(f"value: a {given.metric} is a text", "value")
        if given.metric == "correction" and given.call_id is None:
            raise RequestRefused("call_id: name the call whose answer is corrected", "call_id")
        return None
    metric = settings.feedback.get(given.metric)
    if metric is None:
        declared = ", ".join([*settings.feedback, *TEXTS])
        raise RequestRefused(f"metric: {given.metric} is not declared; allowed: {declared}", "metric")
    try:
        return metric.reward(given.value)
    except ValueError as error:
        raise RequestRefused(f"value: {error}", "value") from error
