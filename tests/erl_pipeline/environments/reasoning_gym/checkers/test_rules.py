"""The texts of checkers, on questions small enough to be solved by hand."""

from __future__ import annotations

from typing import Any

import pytest

from erl_pipeline.environments.reasoning_gym.checkers import broken_rules

SUDOKU = {"puzzle": [[1, 0, 0, 4], [0, 4, 1, 0], [0, 0, 4, 0], [4, 0, 0, 0]]}
QUEENS = {"puzzle": [["_", "Q", "_", "_"], ["_", "_", "_", "_"], ["_", "_", "_", "_"], ["_", "_", "_", "_"]]}
FUTOSHIKI = {"puzzle": [[0, 2], [0, 0]], "constraints": [[0, 0, 0, 1, "<"]]}
KAKURASU = {"n_rows": 2, "n_cols": 2, "row_sums": [2, 1], "col_sums": [2, 1]}
SURVO = {"puzzle": [[0, 2, 5], [1, 0, 5], [4, 6, 10]], "candidate_numbers": [3, 4]}
COUNTDOWN = {"numbers": [2, 3, 5], "target": 11}
CRYPTARITHM = {
    "letters": ["A", "B", "C"],
    "words_letters": ["AB", "B"],
    "result_letters": "CA",
    "allow_leading_zero": False,
}
HANOI = {"num_disks": 2, "num_pegs": 3, "start_peg": 1, "target_peg": 3}
JUGS = {"puzzle": {"jug_capacities": [3, 5], "target": 4}}
MAZE = {"matrix": [["*", "O"], ["X", "#"]]}
LOCK = {
    "initial_value": 0,
    "initial_state": "red",
    "target_value": 6,
    "buttons": [
        {"name": "A", "type": "add", "value": 3, "active_state": "any"},
        {"name": "B", "type": "multiply", "value": 2, "active_state": "green"},
    ],
}
COLOURS = {"puzzle": {"vertices": [0, 1, 2], "edges": [[0, 1]], "color_options": [1, 2]}}


@pytest.mark.parametrize(
    ("name", "metadata", "answer", "said"),
    [
        (
            "mini_sudoku",
            SUDOKU,
            "1 2 3 4\n3 4 1 2\n2 1 4 1\n4 3 2 1",
            [
                "Row 3 has 1 more than once.",
                "Column 4 has 1 more than once.",
                "The square of rows 3-4 and columns 3-4 has 1 more than once.",
            ],
        ),
        (
            "mini_sudoku",
            SUDOKU,
            "2 1 3 4\n3 4 1 2\n1 2 4 3\n4 3 2 1",
            ["Row 1, column 1 was given as 1, but the answer has 2."],
        ),
        ("mini_sudoku", SUDOKU, "1 2 3 4", ["The answer should have 4 rows of 4 numbers."]),
        (
            "n_queens",
            QUEENS,
            "_ Q _ _\n_ _ _ Q\nQ _ _ _\n_ _ Q _",
            [],
        ),
        (
            "n_queens",
            QUEENS,
            "_ _ _ _\n_ _ _ Q\nQ _ _ _\n_ Q _ _",
            [
                "The board has 3 queens instead of 4.",
                "The queen that was given in row 1, column 2 is gone.",
                "The queens in row 2, column 4 and row 4, column 2 attack each other.",
            ],
        ),
        (
            "futoshiki",
            FUTOSHIKI,
            "2 < 1\n1   2",
            [
                "Row 1, column 1 has 2 and row 1, column 2 has 1, but the sign between them is <.",
                "Row 1, column 2 was given as 2, but the answer has 1.",
            ],
        ),
        (
            "kakurasu",
            KAKURASU,
            "0 1\n0 1",
            [
                "Row 2 has the sum 2 instead of 1.",
                "Column 1 has the sum 0 instead of 2.",
                "Column 2 has the sum 3 instead of 1.",
            ],
        ),
        (
            "survo",
            SURVO,
            "4 2 5\n1 4 5\n4 6 10",
            [
                "Not placed: 3.",
                "Placed too often, or not among the numbers to place: 4.",
                "Row 1 has the sum 6 instead of 5.",
            ],
        ),
        ("countdown", COUNTDOWN, "2*3 + 5", []),
        (
            "countdown",
            COUNTDOWN,
            "2*2 / 3",
            [
                "The expression does not use 5.",
                "The expression uses a number too often, or one that was not given: 2.",
                "The expression has the value 1.333 instead of 11.",
            ],
        ),
        (
            "countdown",
            COUNTDOWN,
            "five and six",
            ["The answer should be an expression of numbers with + - * / and parentheses, and nothing else."],
        ),
        # AB + B = CA: 49 + 9 = 58 is not 54, and 4 + 9 carries, so C is 5.
        (
            "cryptarithm",
            CRYPTARITHM,
            "A=4,B=9,C=5",
            ["With these digits 49 + 9 is 58, but CA is 54."],
        ),
        ("cryptarithm", CRYPTARITHM, "A=4,B=9", ["These letters have no digit: C."]),
        (
            "tower_of_hanoi",
            HANOI,
            "Move disk 1 from Peg 1 to Peg 2\nMove disk 2 from Peg 1 to Peg 2",
            ["Move 2 puts disk 2 on the smaller disk 1."],
        ),
        (
            "tower_of_hanoi",
            HANOI,
            "Move disk 1 from Peg 1 to Peg 3",
            ["After all moves 1 of 2 disks are on peg 3."],
        ),
        (
            "jugs",
            JUGS,
            '["fill B", "pour B->A"]',
            ["After all moves the jugs hold A: 3, B: 2, and none holds 4."],
        ),
        (
            "jugs",
            JUGS,
            '["fill B", "pour B->A", "empty A", "pour B->A", "fill B", "pour B->A"]',
            [],
        ),
        ("shortest_path", MAZE, "right down", []),
        ("shortest_path", MAZE, "down right", ["Step 1 (down) enters a blocked cell."]),
        ("shortest_path", MAZE, "up", ["Step 1 (up) leaves the grid."]),
        ("shortest_path", MAZE, "right", ["After 1 steps the path is not at the destination."]),
        # A adds 3 and the light is green; B doubles.
        ("quantum_lock", LOCK, "A → B", []),
        ("quantum_lock", LOCK, "B → A", ["These buttons lead to 3 instead of 6."]),
        (
            "graph_color",
            COLOURS,
            '{"0": 1, "1": 1, "2": 3}',
            [
                "These vertices have a color that is not possible: 2.",
                "Vertices 0 and 1 are joined by an edge and have the same color.",
            ],
        ),
        (
            "prime_factorization",
            {"number": 12},
            "2 × 4",
            ["The product of the factors is 8 instead of 12.", "Not prime: 4."],
        ),
        ("gcd", {"numbers": [12, 18]}, "4", ["4 does not divide 18."]),
        ("lcm", {"numbers": [4, 6]}, "8", ["8 is no multiple of 6."]),
        ("base_conversion", {"target_base": 3}, "132", ["Base 3 has no '3'."]),
        (
            "spell_backward",
            {"word": "Sun"},
            "nu",
            [
                "The answer has 2 characters, but the word has 3.",
                "Letters that were given and are not used: s.",
            ],
        ),
        (
            "palindrome_generation",
            {"letters": ["a", "b", "a"]},
            "aab",
            ["The answer does not read the same backwards."],
        ),
        (
            "palindrome_partitioning",
            {"string": "aab"},
            '[["aab"], ["aa"]]',
            ["List 1 has parts that are no palindromes: aab.", "List 2 does not make up aab."],
        ),
        (
            "group_anagrams",
            {"words": ["eat", "tea", "tan"]},
            '[["eat", "tan"]]',
            [
                "Words that were given and are not in the answer: tea.",
                "These are not all anagrams of each other: eat, tan.",
            ],
        ),
        (
            "word_sequence_reversal",
            {"words": ["one", "two"]},
            "two, three",
            [
                "Words that were given and are not in the answer: one.",
                "Words that are in the answer too often, or were not given: three.",
            ],
        ),
        ("caesar_cipher", {"cipher_text": "BC DEF"}, "AB CD", ["CD is not as long as DEF."]),
        (
            "word_ladder",
            {"start_word": "CAT", "end_word": "DOG"},
            "cat,cot,dog",
            ["From COT to DOG it is not one letter that changes."],
        ),
        ("leg_counting", {}, "3", []),
    ],
)  # fmt: skip
def test_the_rules_that_an_answer_breaks(
    name: str, metadata: dict[str, Any], answer: str, said: list[str]
) -> None:
    assert broken_rules(name, metadata, answer) == said


def test_no_more_than_three_sentences_are_said() -> None:
    assert len(broken_rules("mini_sudoku", SUDOKU, "1 1 1 1\n1 1 1 1\n1 1 1 1\n1 1 1 1")) == 3
