from collections.abc import Sequence

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.play import BatchSampling, EpisodeSetup, play_episodes
from erl_pipeline.methods.rlvr import METHOD, RlvrConfig
from tests.erl_pipeline.episodes.script import COMPACT, PROVENANCE, SETTINGS, TASK, limits, says, setup


class Downward:
    policy_version = "policy-1"

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return [says("down b") for _ in requests]


def test_an_episode_is_the_first_attempt_of_erl() -> None:
    erl = setup(max_revisions=0)
    protocol = METHOD.open_episode(RlvrConfig(), COMPACT, first_only=False, retrieval=False)
    rlvr = EpisodeSetup(erl.plugin, SETTINGS, protocol, erl.chat, limits(), PROVENANCE)
    rows = play_episodes(rlvr, [TASK], range(2), BatchSampling(Downward())).rows

    assert [(row.role, row.reward, row.finish_reason) for row in rows] == [("first_attempt", 0.0, "done")] * 2
    assert rows == play_episodes(erl, [TASK], range(2), BatchSampling(Downward())).rows
