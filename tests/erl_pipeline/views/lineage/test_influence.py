from __future__ import annotations

from erl_pipeline.views.lineage.influence import policies_reached, scores_reached
from storage.lineage import downstream
from tests.histories import History


def test_policies_and_scores_are_told_apart_by_whether_the_training_itself_read_it(history: History) -> None:
    reach = downstream(history.store, history.base, "m-1")
    assert [(policy.policy, policy.how, policy.iteration) for policy in policies_reached(reach)] == [
        (history.ids["update-2"], "directly", 2),
        (history.ids["tuned-2"], "as a descendant", 2),
    ]
    (score,) = scores_reached(reach)
    assert (score.artifact_id, score.policy) == (history.ids["scores-2"], history.ids["tuned-2"])
    assert (score.how, score.greedy_success, score.run) == ("as a descendant", 0.5, "base")


def test_the_score_of_a_policy_that_trained_on_it_directly(history: History) -> None:
    reach = downstream(history.store, history.base, "s-second")
    scores = [(score.policy, score.how, score.greedy_success) for score in scores_reached(reach)]
    assert scores == [
        (history.ids["tuned"], "directly", 0.25),
        (history.ids["tuned-2"], "as a descendant", 0.5),
    ]
