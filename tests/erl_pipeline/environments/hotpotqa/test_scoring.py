import pytest

from erl_pipeline.environments.hotpotqa.environment import exact_match, f1_score, normalise


def test_case_punctuation_articles_and_spaces_do_not_count() -> None:
    assert normalise("  The  U.S. Army, a force ") == "us army force"
    assert exact_match("the Beatles.", "Beatles")
    assert not exact_match("Beatle", "Beatles")


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("Anna Holm", "Anna Holm", 1.0),
        ("the mayor Anna Holm", "Anna Holm", 0.8),  # precision 2/3, recall 1: 2 * 2/3 / (5/3)
        ("Anna", "Anna Holm", 2 / 3),
        ("Anna Anna", "Anna Holm", 0.5),  # a word counts as often as the right answer has it
        ("Holm Anna", "Anna Holm", 1.0),
        ("Berta", "Anna Holm", 0.0),
        ("yes", "yes", 1.0),
        ("yes it is", "yes", 0.0),
        ("no", "no one", 0.0),
        ("no", "yes", 0.0),
        ("", "Anna", 0.0),
    ],
)
def test_f1_of_words_but_yes_and_no_are_right_or_wrong_as_a_whole(
    answer: str, gold: str, score: float
) -> None:
    assert f1_score(answer, gold) == pytest.approx(score)


def test_an_answer_of_an_article_alone_is_not_equal_to_an_empty_one() -> None:
    assert exact_match("a", "A")
    assert not exact_match("", "A")
    assert not exact_match("...", "A")
