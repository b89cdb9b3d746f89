"""Token sequences of served episodes."""

from erl_pipeline.serving.learning.sequences import LOST, UNEVEN, turn_sequences
from tests.erl_pipeline.serving.learning.served_traffic import at, turn


def test_turns_that_follow_each_other_are_one_sequence() -> None:
    second = turn("b", after="a", context_token_ids=(9, 3), sampled_token_ids=(6,), logprobs=(-1.0,))

    (sequence,) = turn_sequences([turn("a"), second])

    assert sequence.prompt == (1, 3)
    assert sequence.response == [5, 2, 9, 3, 6]
    assert sequence.mask == [1, 1, 0, 0, 1]
    assert sequence.logprobs == [-0.5, -0.25, 0.0, 0.0, -1.0]
    assert [each["content"] for each in sequence.messages] == ["asks a", "says a", "asks b", "says b"]
    assert sequence.not_trainable == ""


def test_a_second_continuation_is_a_sequence_behind_the_same_tokens_which_are_not_trained_again() -> None:
    turns = [turn("a"), turn("b", after="a", arrived=at(1)), turn("c", after="a", arrived=at(2))]

    _, branch = turn_sequences(turns)

    assert (branch.prompt, branch.response, branch.mask) == ((1, 3, 5, 2, 1, 3), [5, 2], [1, 1])
    assert [each["content"] for each in branch.messages] == ["asks a", "says a", "asks c", "says c"]


def test_turns_follow_each_other_though_the_clock_was_set_back() -> None:
    turns = [
        turn("a", arrived=at(9)),
        turn("b", after="a", arrived=at(1)),
        turn("c", after="b", arrived=at(2)),
        turn("other", arrived=at(10)),
    ]

    conversation, other = turn_sequences(turns)

    assert [each.turn_id for each in conversation.turns] == ["a", "b", "c"]
    assert (conversation.prompt, conversation.response) == ((1, 3), [5, 2, 1, 3, 5, 2, 1, 3, 5, 2])
    assert (sum(conversation.mask), conversation.not_trainable) == (6, "")
    assert [each.turn_id for each in other.turns] == ["other"]


def test_rows_have_the_thoughts_of_an_answer_before_it() -> None:
    said = {"role": "assistant", "content": "7", "reasoning_content": "3 + 4"}
    (sequence,) = turn_sequences([turn("a", answer=said)])
    assert sequence.messages[-1] == {"role": "assistant", "content": "<think>\n3 + 4\n</think>\n7"}


def test_another_checkpoint_begins_a_sequence() -> None:
    later = turn("b", after="a", policy_version="newer", arrived=at(1))

    first, second = turn_sequences([turn("a"), later])

    assert [each.turn_id for each in first.turns] == ["a"]
    assert (second.prompt, second.response) == ((1, 3, 5, 2, 1, 3), [5, 2])


def test_a_turn_that_cannot_be_trained_is_context() -> None:
    turns = [turn("a", not_trainable="top_p"), turn("b", after="a", arrived=at(1))]

    (sequence,) = turn_sequences(turns)

    assert sequence.mask == [0, 0, 0, 0, 1, 1]
    assert sequence.logprobs == [0.0, 0.0, 0.0, 0.0, -0.5, -0.25]


def test_sequences_without_a_trained_token_say_why() -> None:
    for turns, why in (
        ([turn("a", not_trainable="top_p")], "top_p"),
        ([turn("b", after="lost"), turn("c", after="b", arrived=at(1))], LOST),
        ([turn("a", logprobs=(-0.5,))], UNEVEN),
        # What earlier versions logged: the engine sampled greedily, or at 0.01.
        ([turn("a", temperature=1e-50)], "it was sampled at temperature 1e-50"),
        ([turn("a", logprobs=(0.5, float("nan")))], "its log-probabilities are none"),
    ):
        (sequence,) = turn_sequences(turns)

        assert (any(sequence.mask), sequence.not_trainable) == (False, why)
