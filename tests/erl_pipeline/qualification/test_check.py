from erl_pipeline.qualification.check import Later, Secret, Told, find_leak, secrets_of


def told(number: int, answer: str, prompt: str, feedback: str = "Wrong.", said: str = "xyz") -> Told:
    return Told(f"t{number}", (Secret("answer", answer),), (), prompt, (Later(feedback, said),))


def test_what_counts_as_a_secret() -> None:
    payload = {"question": "2 + 2?", "answer": 4, "metadata": {"seed": 17, "difficulty": 3}}
    assert secrets_of("sum-1", payload, ["The answer is \\boxed{4}"]) == (
        Secret("task id", "sum-1"),
        Secret("answer", "The answer is \\boxed{4}"),
        Secret("answer", "4"),
        Secret("seed", "17"),
    )


def test_a_tool_call_is_no_answer() -> None:
    turns = ['<tool_call>{"name": "search"}</tool_call>', "[Paris]"]
    assert secrets_of("t", {}, turns)[1:] == (Secret("answer", "[Paris]"), Secret("answer", "Paris"))


def test_a_short_answer_after_the_same_words_in_most_prompts_is_told() -> None:
    tasks = [told(number, str(30 + number), f"Sum {number}? (hint: {30 + number})") for number in range(6)]
    assert "t0 and 5 others: the prompt holds the answer '30' after ' (hint: '" in (find_leak(tasks) or "")


def test_one_of_several_choices_is_not() -> None:
    tasks = [
        told(0, "cat", "Which is shorter: cat or horse?"),
        told(1, "dog", "Which is shorter: mouse or dog?"),
        told(2, "ant", "Which is shorter: ant or elephant?"),
        told(3, "bee", "Which is shorter: spider or bee?"),
    ]
    assert find_leak(tasks) is None


def test_a_count_that_equals_some_answers_is_not() -> None:
    tasks = [told(number, str(number % 3), "How many?", "Steps used: 2.") for number in range(9)]
    assert find_leak(tasks) is None


def test_feedback_that_names_the_right_answer_is_told() -> None:
    tasks = [told(number, str(40 + number), "How many?", f"It was {40 + number}.") for number in range(9)]
    assert "what the environment says holds the answer" in (find_leak(tasks) or "")


def test_a_long_answer_needs_to_be_told_but_once() -> None:
    tasks = [
        told(0, "the Treaty of Tordesillas", "What divided the world?"),
        told(1, "Johannes Gutenberg of Mainz", "Who?", "No, Johannes Gutenberg of Mainz did."),
    ]
    assert "task t1: the answer 'Johannes Gutenberg of Mainz' is told" in (find_leak(tasks) or "")


def test_what_the_policy_said_itself_is_no_leak() -> None:
    answer = "Johannes Gutenberg of Mainz"
    assert find_leak([told(0, answer, "Who?", f"You said {answer} twice.", said=answer)]) is None


def test_an_id_that_is_a_word_may_stand_in_its_question() -> None:
    secrets = (Secret("task id", "paris"),)
    assert find_leak([Told("paris", secrets, (), "How old is paris?", ())]) is None
    numbered = (Secret("task id", "paris-7"),)
    assert find_leak([Told("paris-7", numbered, (), "How old is paris-7?", ())]) is not None
