"""An answer as people write it, as LaTeX that math-verify reads in a box.

Unboxed, math-verify takes the last number of a text, so that `11!`, `11x` and `not 11` are 11 to it. Boxed,
it reads all of a text as an expression, so that `11 eggs` is a product of variables. Answers are therefore
compared boxed, and the rules here, each for one way of writing, say what is in the box.
"""

import json
import logging
import os
import re
import resource
import signal
import socket
import sys
import unicodedata

_SPACES = re.compile(r"(?<!\\)\\(?:[,;:! ]|q?quad\b)|~|\s")
_WRAPPED = (
    re.compile(r"\\boxed\s*\{((?:(?!\\boxed).)*)\}", re.DOTALL),
    re.compile(r"\$\$([^$]+)\$\$"),
    re.compile(r"\$([^$]+)(?<!\\)\$"),
    re.compile(r"\\\(((?:(?!\\\)).)+)\\\)"),
    re.compile(r"\\\[((?:(?!\\\]).)+)\\\]"),
    re.compile(r"\*\*([^*]+)\*\*"),
    re.compile(r"`([^`]+)`"),
    re.compile(r'"([^"]+)"|“([^”]+)”'),
)
_LABEL = re.compile(
    r"(?:(?:so|thus|hence|therefore),? )?(?:the )?(?:final )?answer(?: is\b|:) ?:? ?", re.IGNORECASE
)
_CODES = "USD|EUR|GBP|JPY|CNY|INR|CHF|CAD|AUD"
_CURRENCY = re.compile(rf"\\?[$€£¥₹]|\b(?:{_CODES})\b")
_EXPONENT = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?|\.[0-9]+)[eE]([-+]?[0-9]{1,3})(?!\w)")
_THOUSANDS = re.compile(r"(?<![\d.,])([1-9][0-9]{0,2}(?: [0-9]{3})+)(?![\d]| [0-9])")
_MIXED = re.compile(r"(?<![\w.,/])([0-9]+) ([0-9]+) ?/ ?([0-9]+)(?![\w./])")
_SIDE_BY_SIDE = re.compile(r"[0-9] +\.?[0-9]|(?<![\w^_}])(?:\{[0-9.]+\} *){2,}|(?<![\w^_{])[0-9]+ *\{[0-9]")
# Digits in groups, as in `1_000`. A base from 2 to 16 may stand below a number: `11_2`, `11_{2}`.
_JOINED = re.compile(r"(?<!\^)[0-9]_(?!(?:[2-9]|1[0-6])(?![0-9]))[0-9]")
_PLAIN_NUMBER = r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?"
# Two numbers that are said to be equal, each the whole side of the equation.
_EQUATION = re.compile(
    rf"(?:^|[=,;$])\s*({_PLAIN_NUMBER}) ?= ?"
    rf"(?=({_PLAIN_NUMBER})(?![\w.,]|\s?[/*+^(\\{{!%×·÷-]|\s[x:]\s))"
)
_SUPERSCRIPTS = re.compile("[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")

_NUMBER = (
    r"[-+]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
    r"|[0-9]+/[0-9]+|[0-9]*\\[dt]?frac\{[0-9]+\}\{[0-9]+\}|[0-9.]+ \\cdot 10\^\{[-+]?[0-9]+\})"
)
_AMOUNT = re.compile(rf"(?P<before>[^0-9]*?)(?P<number>{_NUMBER})(?P<after>[^0-9]*)")
_WORD = r"[^\W\d_]{2,}(?:['’-][^\W\d_]+)*|[aAI](?= )"
_BEFORE = re.compile(rf"(?:(?:{_WORD})[,:]? )*")
_AFTER = re.compile(rf"(?: ?(?:{_WORD})(?:/[^\W\d_]+)?,?)?(?: (?:{_WORD})(?:/[^\W\d_]+)?,?)*")
# Two letters after a number are a product of variables, such as `xy`, unless they are one of these.
_SHORT = re.compile(
    r"am|as|at|by|cm|do|ft|hr|in|is|it|kg|km|lb|mi|ml|mm|ms|mg|of|on|oz|pm|so|"
    r"to|we"
)
_FUNCTIONS = re.compile(
    r"abs|arccos|arcsin|arctan|cos|cosh|cot|csc|det|exp|lim|ln|log|max|min|mod|pi|"
    r"sec|sin|sinh|sqrt|tan|tanh"
)
_OTHER_NUMBER = re.compile(
    r"about|and|another|around|at|billion|but|cubed|divided|double|dozen|except|factorial|"
    r"false|fewer|greater|half|hundred|incorrect|least|less|million|minus|more|most|negative|"
    r"neither|never|no|none|nor|not|or|over|percent|plus|quarter|squared|than|third|"
    r"thousand|times|trillion|twice|under|unequal|unless|without|wrong"
)


def latex_of(text: str) -> str | None:
    """What an answer says, as LaTeX for a box; None where it gives several numbers side by side, or one whose
    digits are joined by `_`."""
    plain = uniform(text)
    plain = _unwrapped(_LABEL.sub("", plain, count=1) if _LABEL.match(plain) else plain)
    plain = _EXPONENT.sub(r"\1 \\cdot 10^{\2}", plain)  # math-verify takes `e` for Euler's number
    plain = _THOUSANDS.sub(lambda found: found[1].replace(" ", ""), plain)  # boxed, `1 000` is 1 * 0 to it
    plain = _MIXED.sub(r"\1\\frac{\2}{\3}", plain)  # boxed, `2 1/2` is 3/2 to it
    # Boxed, math-verify adds up what stands side by side: `17 18` is 35 to it. `12 = 11` is 11 to it, and
    # `1_000` is 1.
    if _JOINED.search(plain) or _SIDE_BY_SIDE.search(plain) or _is_untrue(plain):
        return None
    return _amount(plain) or plain


def _is_untrue(text: str) -> bool:
    """Whether it says of two numbers that are not the same that they are equal."""
    return any(
        float(found[1].replace(",", "")) != float(found[2].replace(",", ""))
        for found in _EQUATION.finditer(text)
    )


def other_signs(right: str, said: str) -> bool:
    """Whether texts that math-verify finds equal differ in what it does not look at: in a prime, as `f'` and
    `f`, or in the case of a variable, as `X` and `x`."""
    return _primes(right) != _primes(said) or any(
        letter not in _letters(right)
        and letter.swapcase() in _letters(right)
        and letter.swapcase() not in _letters(said)
        for letter in _letters(said)
    )


def uniform(text: str) -> str:
    """The text with one sign for what has several in Unicode, since math-verify reads ASCII, and without
    marks around it."""
    text = _SUPERSCRIPTS.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", text)
    # A no-break hyphen (U+2011) is U+2010 by now.
    text = "".join(map(_one_sign, text)).replace("−", "-").replace("\u2010", "-")
    text = " ".join(_SPACES.sub(" ", text).split()).replace("{,}", ",")
    # The full stop of a sentence.
    stopped = text.endswith(".") and not text.endswith("..")
    return _unwrapped(text[:-1].rstrip() if stopped else text)


def _one_sign(letter: str) -> str:
    if letter.isascii():
        return letter
    kind = unicodedata.decomposition(letter).partition(" ")[0]
    plain = unicodedata.normalize("NFKC", letter)
    if kind == "<fraction>" and "⁄" in plain:
        over, _, under = plain.partition("⁄")
        return f"\\frac{{{over}}}{{{under}}}" if over and under else letter
    return plain if kind in ("<wide>", "<narrow>", "<font>", "<noBreak>", "<compat>") else letter


def _unwrapped(text: str) -> str:
    """The text without signs around all of it that mark it as mathematics, as bold or as quoted."""
    while inner := next((found for each in _WRAPPED if (found := each.fullmatch(text))), None):
        text = next(group for group in inner.groups() if group is not None).strip()
    return text


def _amount(text: str) -> str | None:
    """The number of a text that is one number with its unit, currency or sentence; None for other texts."""
    plain = " ".join(_CURRENCY.sub(" ", text).split())
    plain = re.sub(r"([-+]) (?=\.?[0-9])", r"\1", plain)
    found = _AMOUNT.fullmatch(plain)
    if found is None:
        return None
    before, after = found["before"], found["after"].rstrip()
    if not _BEFORE.fullmatch(before) or not _AFTER.fullmatch(after):
        return None
    words = re.findall(r"[^\W\d_]+", f"{before} {after}".casefold())
    short = [word for word in re.findall(r"[^\W\d_]+", after) if len(word) == 2]
    if any(_OTHER_NUMBER.fullmatch(word) or _FUNCTIONS.fullmatch(word) for word in words):
        return None
    if any(not _SHORT.fullmatch(word.casefold()) for word in short) or "n't" in before.replace("’", "'"):
        return None
    return found["number"]


def _primes(text: str) -> int:
    return sum(map(text.count, ("'", "’", "′", "\\prime")))


def _letters(text: str) -> set[str]:
    """Letters that stand alone or in twos, as variables do; longer runs are words."""
    return {letter for run in re.findall(r"(?<![A-Za-z\\])[A-Za-z]{1,2}(?![A-Za-z])", text) for letter in run}


SECONDS = 2.0
"""Processor time of one comparison."""
GIGABYTES = 1
"""Address space of the process that compares."""


def _verdict(right: str, said: str) -> str:
    # Without math-verify's own time limits, which are signals too: the timer below covers everything.
    from math_verify import parse, verify

    gold, target = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (right, said))
    if not target:
        return "unreadable"
    return "equal" if verify(gold, target, timeout_seconds=None) else "different"


def main() -> None:
    """Serve connections until there are no more."""
    asker = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdin.fileno())
    logging.disable()
    _verdict("1/2", "0.5")  # Imports, and what a first comparison prepares, are done once.
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES * 2**30, resource.RLIM_INFINITY))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Ended children need not be waited for.
    asker.sendall(b"r")
    while True:
        _, given, _, _ = socket.recv_fds(asker, 1, 1)
        if not given:
            return
        if os.fork() == 0:
            asker.close()
            _answer_lines(given[0])
            os._exit(0)
        os.close(given[0])


def _answer_lines(connection: int) -> None:
    with os.fdopen(connection, "r+b", buffering=0) as lines:
        while line := lines.readline():
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                verdict = _verdict(*json.loads(line))
            except MemoryError:
                verdict = "too_hard"
            except (
                Exception
            ):  # Whatever a library of this size raises at a hostile text, it is no expression.
                verdict = "unreadable"
            signal.setitimer(signal.ITIMER_PROF, 0)
            try:
                lines.write(f"{json.dumps(verdict)}\n".encode())
            except BrokenPipeError:
                return


if __name__ == "__main__":
    main()
