import pytest
from workloads.batches import BATCHES, SEQUENCES, read_batch, token_count


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_is_the_same_each_time_and_stays_in_the_vocabulary(kind: str) -> None:
    sequences = read_batch(kind, 1000)
    assert sequences == read_batch(kind, 1000)
    assert len(sequences) == SEQUENCES
    assert all(100 <= token < 1000 for one in sequences for token in one.prompt_token_ids)
    assert all(one.response_token_ids for one in sequences)


def test_first_attempts_are_eight_groups_of_eight_that_share_a_prompt() -> None:
    sequences = read_batch("first attempts", 1000)
    prompts = [one.prompt_token_ids for one in sequences]
    assert {prompts.count(prompt) for prompt in prompts} == {8}
    assert token_count(sequences) == 9598


def test_episodes_have_all_three_roles() -> None:
    assert {one.role for one in read_batch("episodes", 1000)} == {
        "first_attempt",
        "reflection",
        "second_attempt",
    }
