"""Find out which datasets of reasoning-gym can be trained on: try answers of all kinds on many of their
entries.

    python benchmarks/qualify/reasoning_gym_datasets.py           # all datasets; writes qualified.toml
    python benchmarks/qualify/reasoning_gym_datasets.py gcd maze  # some; prints, writes nothing

A dataset qualifies if equal seeds give equal entries in two processes; if its own answers score 1 in a
process with a hash seed other than that of the process which made them; and if no wrong, empty or hostile
answer scores 1 or takes longer than a second. An answer at which the scorer raises counts as wrong, as in
training.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from erl_pipeline.environments.reasoning_gym import library, tasks
from erl_pipeline.environments.reasoning_gym.library import VERSION, known_answer, score
from erl_pipeline.environments.reasoning_gym.tasks import EntryRequest

ENTRIES = 32
ATTACKED = 6
"""How many entries get all hostile answers. Every entry gets the wrong answers made from its own one."""
DEADLINE = 400.0
LONGEST_SCORING = 1.0
FEWEST_SCORED_RIGHT = 0.9

FAR = 0.01
"""Of a number with decimals one that differs by more than this share is not the answer, only rounded."""
OTHER, CUT = "the answer to another question", "the answer without its first letter"
MAY_BE_RIGHT = {
    ("fraction_simplification", CUT): "the first letter is that of LaTeX's dfrac",
    ("graph_color", OTHER): "a colouring of one graph can be right for another one too",
    ("n_queens", OTHER): "two boards with queens to add can have solutions in common",
    ("propositional_logic", OTHER): "a conclusion can follow from other premises too",
    ("sokoban", CUT): "without a first move against a wall the others still solve the board",
}
"""Kinds of wrong answers that can in fact be right."""

_CANARY = "ran_by_a_scorer"
_CODE = f"__import__('sys').modules.setdefault('{_CANARY}', 1)"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WHOLE = re.compile(r"-?\d+")
_WITH_UNIT = re.compile(r"(-?\d+) [a-z]+")


@dataclass(frozen=True)
class Finding:
    """What was found out about one dataset. `refused` is the reason, empty if it qualifies."""

    name: str
    refused: str
    numeric: bool
    raises: int
    """The number of tried answers at which its scorer raised."""


def hostile_answers() -> list[str]:
    """Two hundred answers that are right for no question: odd, huge, or with code to be executed."""
    fixed = [
        _CODE, f"[{_CODE}]", f"[[{_CODE}]]", f"{_CODE} + 1", f"str({_CODE})",
        "", " ", "\n", "\t\n ", "\0", "xyz 17", "I do not know.", "None", "null", "nan", "NaN", "inf", "-inf",
        "[]", "{}", "()", "[[]]", "[[[[]]]]", "{}{}", '""', "''", "...", "?", "-", "--", "- -", "/", "1/0",
        "0/0", "0x", "0b", "1e999999999", "-1e999999999", "1e-999999999", "9**9**9**9", "9<<9<<9<<9",
        "((((((((((1))))))))))", "(" * 3000, "[" * 3000, "{" * 3000, "[" * 3000 + "]" * 3000, "-" * 3000,
        "!" * 100, "1!!!!!!!!!!", "99999999!", "factorial(99999999)", "10**10**10", "2^2^2^2^2^2^2",
        "__import__('os').getcwd()", "().__class__.__bases__", "exit()", "quit()", "print(1)", "open('x')",
        "[x for x in range(10**9)]", "lambda: 1", "import os", "raise SystemExit", "while True: pass",
        "True False", "Yes No", "yes and no", "heads tails", "0 1 2 3 4 5 6 7 8 9 10 11 12", "A B C D E F G",
        "a, b, c, d, e, f, g", "True, False", "true false", "6+6+6+6", "4*6", "1*1*1*24", "the answer",
        "<answer>", "</answer>", "<answer></answer>", "\\boxed{}", "\\boxed{\\boxed{}}", "$", "$$",
        "\\frac{}{}", "\\frac{1}{0}", "\\dfrac{x}{y}", "%", "%s%s%s%n", "{0}", "{answer}", "{{ answer }}",
        "${answer}", "; rm -rf x", "' OR '1'='1", "../../x", "\ud7ff", "\ufffd", "٣٤٥", "①②③", "½", "²", "−5",
        "ＡＢＣ", "\u00e9", "e\u0301", "🙂" * 50, "\u202eabc", "\u200b", "a\u0300" * 200, "z" * 9999,
        "9" * 9999,
        "1 " * 4999, "1," * 4999, "1\n" * 4999, "Q " * 4999, "_ " * 4999, "up " * 3000, "A → " * 2000,
        "[" + "1," * 4000 + "1]", '{"a": ' * 1000, '{"a": 1}' * 100, '[null, null]', '[["nan"]]', '["nan"]',
        "NaN, NaN", "nan nan nan", '{"0": null}', '{"0": "nan"}', '[{"a": NaN}]', "[Infinity]", "-Infinity",
        "0.3333333333333333333333333", "1.7976931348623157e308", "1" + "0" * 400, "-" + "9" * 4400, "1_0_0",
        "+-+-1", "1.2.3.4", "1,2,3,4,5,6,7,8,9", "1;2;3", "1|2|3", "=", "==", "x=", "=1", "x=x", "A=1",
        "A=1,A=2", "A=-1,B=99999999999", "C", "+ C", "x**2 + C", "x/0", "zoo", "oo", "I", "pi", "E", "i", "j",
        "1+i", "nan+nani", "25:61:61", "99:99", "2024-02-30", "0000-00-00", "Blursday",
        "Move disk 0 from Peg 0 to Peg 0", "Move disk 99 from Peg 99 to Peg 99", '["fill Z"]',
        '["pour A->A"]', '[1]', "[[1]]", "fill A", "R U R' U'" * 500, "L" * 5000, "(A ∧ ¬A)", "¬" * 500, "∨",
        "(∨)", "((((", "))))", "P ∧ ∨ Q",
    ]  # fmt: skip
    stream = random.Random("hostile answers")
    alphabets = (
        string.digits,
        string.punctuation,
        string.ascii_letters,
        string.printable,
        "[]{}(),:\"'0",
        "αβγ½²✅❌",
    )
    while len(fixed) < 200:
        alphabet = alphabets[len(fixed) % len(alphabets)]
        fixed.append("".join(stream.choice(alphabet) for _ in range(stream.randint(12, 120))))
    return fixed[:200]


def wrong_answers(answer: str, others: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Wrong answers made from the right one and from those to other questions, as pairs of kind and text."""
    if _WHOLE.fullmatch(answer):
        number = int(answer)
        for wrong in (number + 1, number - 1, 10 * number + 7):
            yield "a number that is not the answer", str(wrong)
        yield "two numbers, of which one is the answer", f"{number + 1}, {number}"
        yield "two numbers, of which one is the answer", f"{number} or {number + 1}"
        if number:
            yield "the number with the other sign", str(-number)
    elif _NUMBER.fullmatch(answer):
        yield "a number that is not the answer", str(2 * float(answer) + 1)
        for short in (answer[: len(answer) // 2].rstrip("."), "0", "1"):
            if _NUMBER.fullmatch(short) and abs(float(short) - float(answer)) > FAR * abs(float(answer)):
                yield "the beginning of the answer, or 0 or 1", short
    if _NUMBER.search(answer):
        yield "the answer with nan for each number", _NUMBER.sub("nan", answer)
        if _WHOLE.fullmatch(answer) or not _NUMBER.fullmatch(answer):
            # A large number with decimals may be right to a few digits.
            yield "the answer with 1 added to each number", _NUMBER.sub(_plus_one, answer)
    # Without one of its zeros a number may be the same.
    first = next((place for place, letter in enumerate(answer) if letter.isalnum() and letter != "0"), None)
    if first is not None and len(answer) > 3 and not _NUMBER.fullmatch(answer):
        yield CUT, answer[:first] + answer[first + 1 :]
    yield "the answer backwards, twice", 2 * answer[::-1] + "x"
    if answer.startswith("[["):
        wider = [[*row, 7] for row in json.loads(answer)]
        yield "the answer with a further cell in each row, and a further row", json.dumps([*wider, [7]])
    if counted := _WITH_UNIT.fullmatch(answer):
        yield "the number of the answer with another unit", f"{counted[1]} weeks"
    for other in others:
        if _plain(other) != _plain(answer):
            yield OTHER, other
            yield "the answer with another one after it", f"{answer}, {other}"
            yield "the answer with another one after it", f"{answer}\n{other}"


def _plus_one(match: re.Match[str]) -> str:
    text = match.group()
    return str(float(text) + 1) if "." in text else str(int(text) + 1)


def _plain(text: str) -> str:
    return re.sub(r"[\s\[\]\"',]", "", text).lower()


def examine(name: str) -> Finding:
    """Try one dataset, in this process."""
    request = EntryRequest(name, {}, seed=12345, split="training", count=ENTRIES, third=False)
    raw = list(itertools.islice(tasks._stream(request), 2 * ENTRIES))
    answers = [known_answer(name, entry) for entry in raw]
    known = [
        (entry, answer.strip())
        for entry, answer in zip(raw, answers, strict=True)
        if answer and answer.strip()
    ]
    if not known:
        return Finding(name, "the library gives no right answer, so that nothing proves its scorer", False, 0)
    numeric = all(_NUMBER.fullmatch(answer) for _, answer in known)
    right = [pair for pair in known if score(name, {}, *pair).right]
    if len(right) < FEWEST_SCORED_RIGHT * len(raw):
        reason = (
            "its own answer, with the entry kept as JSON, is empty or scores below 1 in "
            f"{len(raw) - len(right)} of {len(raw)} entries"
        )
        return Finding(name, reason, numeric, 0)
    first, second = (tasks.generate([request])[0] for _ in range(2))
    if first != second:
        return Finding(name, "equal seeds give other entries in another process", numeric, 0)
    reason, raises = _attack(name, first)
    return Finding(name, reason, numeric, raises)


def _attack(name: str, entries: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """Why the dataset is refused (empty if it is not), and at how many answers its scorer raised."""
    answers = [(known_answer(name, entry) or "").strip() for entry in entries]
    raises = 0
    for number, (entry, answer) in enumerate(zip(entries, answers, strict=True)):
        if not score(name, {}, entry, answer).right:
            return "its own answer scores below 1 under another hash seed", raises
        made = wrong_answers(answer, answers[number + 1 : number + 4])
        tried = [(kind, wrong) for kind, wrong in made if (name, kind) not in MAY_BE_RIGHT]
        if number < ATTACKED:
            tried += [
                ("a hostile answer", wrong) for wrong in hostile_answers() if _plain(wrong) != _plain(answer)
            ]
        for kind, wrong in tried:
            print(json.dumps([kind, wrong[:80]]), file=sys.stderr, flush=True)
            begun = time.monotonic()
            found = score(name, {}, entry, wrong)
            if found.right:
                return f"{kind} scores 1: {_shown(wrong)} where {_shown(answer)} is right", raises
            if _CANARY in sys.modules:
                return "its scorer runs code that stands in the answer", raises
            if time.monotonic() - begun > LONGEST_SCORING:
                return f"scoring {_shown(wrong)} takes longer than a second", raises
            raises += found.problem is not None and "could not read" in found.problem
    return "", raises


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")


def examine_apart(name: str) -> Finding:
    """Try one dataset in a separate process, which may hang or crash."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            env={**os.environ, "PYTHONHASHSEED": "7"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        last = (error.stderr or b"").decode().strip().splitlines()[-1:]
        return Finding(name, f"its scorer hangs, or it takes minutes: {''.join(last)}", False, 0)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        return Finding(name, f"it fails: {''.join(last)}", False, 0)
    return Finding(**json.loads(done.stdout.strip().splitlines()[-1]))


def list_text(findings: Sequence[Finding]) -> str:
    """The list in the form in which the package keeps it."""
    lines = [
        f"# Made by benchmarks/qualify/reasoning_gym_datasets.py with reasoning-gym {VERSION}.",
        *_names("qualified", [each.name for each in findings if not each.refused]),
        "# Every answer is a number.",
        *_names("numeric", [each.name for each in findings if each.numeric and not each.refused]),
        "# The scorer raises at some wrong answers; they count as wrong.",
        *_names("raises", [each.name for each in findings if each.raises and not each.refused]),
        "",
        "[refused]",
        *(
            f"{each.name} = {json.dumps(each.refused, ensure_ascii=False)}"
            for each in findings
            if each.refused
        ),
    ]
    return "\n".join(lines) + "\n"


def _names(key: str, names: Sequence[str]) -> list[str]:
    return [f"{key} = [", *(f'    "{name}",' for name in names), "]"]


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--one"]:
        with redirect_stdout(sys.stderr):  # Some datasets print.
            found = examine(arguments[1])
        print(json.dumps(asdict(found)))
        return
    from reasoning_gym.factory import DATASETS

    findings = []
    for name in arguments or sorted(set(DATASETS) - {"composite"}):
        begun = time.monotonic()
        findings.append(examine_apart(name))
        seconds = time.monotonic() - begun
        print(f"{name}: {findings[-1].refused or 'qualifies'} ({seconds:.0f} s)", flush=True)
    if not arguments:
        (Path(library.__file__).parent / library.LIST).write_text(list_text(findings), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
