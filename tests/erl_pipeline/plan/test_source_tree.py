from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from erl_pipeline.plan.source_tree import SourceTree

LAKE = {
    "house/__init__.py": "",
    "house/stage.py": (
        "import math\n"
        "from typing import TYPE_CHECKING\n"
        "from house import rooms\n"
        "from house.rooms.hall import LENGTH as SIZE\n"
        "if TYPE_CHECKING:\n    from house.drawing import Drawing\n"
        "WIDTH = SIZE + 1\n"
        "def compute(drawing: 'Drawing'):\n"
        '    """Computes."""\n'
        "    import house.cellar\n"
        "    return rooms.kitchen.cook(WIDTH), house.cellar.DEPTH, math.sqrt(2)\n"
        "def show():\n    from house.drawing import Drawing\n    return Drawing()\n"
    ),
    "house/rooms/__init__.py": "",
    "house/rooms/hall.py": "LENGTH = 3\nCOLOUR = 'red'\n",
    "house/rooms/kitchen.py": "def cook(meal):\n    return meal\ndef wash():\n    return WATER\nWATER = 1\n",
    "house/cellar.py": "DEPTH = 2\n",
    "house/drawing.py": "class Drawing:\n    pass\n",
}
COMPUTE = ("house.stage", "compute")


def _tree(folder: Path, sources: Mapping[str, str], **plugged_in: list[tuple[str, str]]) -> SourceTree:
    for name, source in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    return SourceTree({"house": folder / "house"}, plugged_in, {"Stage": frozenset({"version", "slice"})})


def test_definitions_are_followed_through_names_and_imports_but_not_through_types(tmp_path: Path) -> None:
    assert _tree(tmp_path, LAKE).reach([COMPUTE]).keys() == {
        COMPUTE,
        ("house.stage", "WIDTH"),
        ("house.rooms.hall", "LENGTH"),
        ("house.rooms.kitchen", "cook"),
        ("house.cellar", "DEPTH"),
    }


@pytest.mark.parametrize(
    ("name", "old", "new", "changes"),
    [
        ("house/stage.py", "SIZE + 1", "SIZE + 2", True),
        ("house/rooms/hall.py", "LENGTH = 3", "LENGTH = 4", True),
        ("house/rooms/kitchen.py", "return meal", "return [meal]", True),
        ("house/stage.py", "import math\n", "import numpy as math\n", True),
        ("house/stage.py", '"""Computes."""', '"""Computes more."""', False),
        ("house/stage.py", "return Drawing()", "return None", False),
        ("house/rooms/hall.py", "'red'", "'blue'", False),
        ("house/rooms/kitchen.py", "WATER = 1", "WATER = 2  # more", False),
        ("house/drawing.py", "pass", "size = 3", False),
    ],
)
def test_only_what_is_reached_changes_digests(
    tmp_path: Path, name: str, old: str, new: str, changes: bool
) -> None:
    before = _tree(tmp_path / "a", LAKE).reach([COMPUTE])
    assert LAKE[name].count(old) == 1
    after = _tree(tmp_path / "b", {**LAKE, name: LAKE[name].replace(old, new)}).reach([COMPUTE])
    assert (before != after) == changes


@pytest.mark.parametrize(
    "rules",
    [
        "try:\n    from house.fast import reward\nexcept ImportError:\n    from house.slow import reward\n",
        "try:\n    from house.fast import reward\nexcept ImportError:\n    def reward():\n        return 0\n",
        "import sys\nif sys.version_info > (3, 10):\n    from house.fast import reward\n"
        "else:\n    from house.slow import reward\n",
        "import sys\nmatch sys.platform:\n    case _:\n        from house.fast import reward\n",
        "def reward():\n    return 0\nfrom house.fast import reward\n",
    ],
)
def test_all_that_a_name_may_stand_for_counts(tmp_path: Path, rules: str) -> None:
    def reached(folder: str, reward: int) -> Mapping[tuple[str, str], str]:
        sources = {
            "house/__init__.py": "",
            "house/stage.py": "from house.rules import reward\ndef compute():\n    return reward()\n",
            "house/rules.py": rules,
            "house/fast.py": f"def reward():\n    return {reward}\n",
            "house/slow.py": "def reward():\n    return 0\n",
        }
        return _tree(tmp_path / folder, sources).reach([COMPUTE])

    assert reached("a", 1) == reached("b", 1)
    assert reached("a", 1) != reached("c", 2)


@pytest.mark.parametrize(
    "stage",
    [
        "from house.fast import reward\nclass Game:\n    def one(self):\n        return reward()\n"
        "    def two(self):\n        from house.slow import reward\n        return reward()\n"
        "def compute():\n    return Game()\n",
        "try:\n    from house.fast import *\nexcept ImportError:\n    def reward():\n        return 0\n"
        "def compute():\n    return reward()\n",
    ],
)
def test_no_import_hides_another(tmp_path: Path, stage: str) -> None:
    def reached(folder: str, reward: int) -> Mapping[tuple[str, str], str]:
        sources = {
            "house/__init__.py": "",
            "house/stage.py": stage,
            "house/fast.py": f"def reward():\n    return {reward}\n",
            "house/slow.py": "def reward():\n    return 0\n",
        }
        return _tree(tmp_path / folder, sources).reach([COMPUTE])

    assert reached("a", 1) != reached("b", 2)


def test_a_class_that_has_the_name_of_a_record_is_no_record(tmp_path: Path) -> None:
    """What does not count in this project's `Stage` counts in a game's own."""

    def reached(folder: str, stage: str, version: int) -> Mapping[tuple[str, str], str]:
        source = f"{stage}\nLEVELS = [Stage(version={version})]\ndef compute():\n    return LEVELS\n"
        return _tree(tmp_path / folder, {"house/__init__.py": "", "house/stage.py": source}).reach([COMPUTE])

    own, records = "class Stage:\n    pass", "from erl_pipeline.plan.stage import Stage"
    assert reached("a", own, 1) != reached("b", own, 2)
    assert reached("c", records, 1) == reached("d", records, 2)


def test_types_of_parameters_count_where_schemas_are_made_of_them(tmp_path: Path) -> None:
    def reached(folder: str, ways: str, made: str) -> Mapping[tuple[str, str], str]:
        sources = {
            "house/__init__.py": "",
            "house/stage.py": f"from house.tools import go\ndef compute():\n    return {made}(go)\n",
            "house/tools.py": f"Ways = {ways}\ndef go(way: Ways):\n    return way\n",
        }
        return _tree(tmp_path / folder, sources).reach([COMPUTE])

    assert reached("a", "'up'", "get_json_schema") != reached("b", "'down'", "get_json_schema")
    assert reached("c", "'up'", "call") == reached("d", "'down'", "call")


def test_files_that_are_no_modules_are_data(tmp_path: Path) -> None:
    """Also programs that an environment has as tasks: not Python 3, or in a folder that is no package."""
    sources = {
        **LAKE,
        "house/tasks/task1.py": "print 1\n",
        "house/old.py": "print 1\n",
        "house/a-b.py": "A = 1\n",
        "house/words.txt": "a",
    }
    tree = _tree(tmp_path, sources)
    named = [name for name, _ in tree.files_of_no_module("house")]
    assert named == ["a-b.py", "old.py", "tasks/task1.py", "words.txt"]
    assert tree.source("house.old") is None


def test_what_an_import_does_counts_with_every_import(tmp_path: Path) -> None:
    sources = {
        "house/__init__.py": "",
        "house/stage.py": (
            "from house.rules import RULES\nimport house.more\ndef compute():\n    return RULES\n"
        ),
        "house/rules.py": "RULES = {}\ndef rule(function):\n    RULES[function.__name__] = function\n",
        "house/more.py": (
            "from house.rules import rule\n"
            "@rule\ndef right():\n    return GAIN\n"
            "GAIN = 1.0\n"
            "def left():\n    return 2\n"
        ),
    }
    first = _tree(tmp_path / "a", sources).reach([COMPUTE])
    assert ("house.more", "GAIN") in first
    assert ("house.more", "left") not in first
    more = sources["house/more.py"].replace("return GAIN", "return -GAIN")
    assert _tree(tmp_path / "b", {**sources, "house/more.py": more}).reach([COMPUTE]) != first


def test_code_that_finds_modules_by_itself_makes_all_of_them_count(tmp_path: Path) -> None:
    sources = {
        "house/__init__.py": "",
        "house/stage.py": (
            "from importlib import import_module\ndef compute(name):\n    import_module(name)\n"
        ),
        "house/more.py": "def right():\n    return 1\n",
    }
    assert ("house.more", "right") in _tree(tmp_path, sources).reach([COMPUTE])
    trusted = SourceTree({"house": tmp_path / "house"}, cautious=False)
    assert ("house.more", "right") not in trusted.reach([COMPUTE])


LAZY = """
def __getattr__(name):
    from house.more import right
    return right
"""


@pytest.mark.parametrize(
    ("package", "stage"),
    [
        (LAZY, "from house import right\ndef compute():\n    return right()\n"),
        (LAZY, "import house\ndef compute():\n    return house.right()\n"),
        (
            "",
            "import sys\ndef compute(name):\n    return sys.modules[__package__ + '.more'].right()\n",
        ),
    ],
)
def test_names_that_are_found_while_it_runs_make_all_of_the_package_count(
    package: str, stage: str, tmp_path: Path
) -> None:
    """A package that imports its parts when they are asked for, and a module that is found by its name."""
    sources = {
        "house/__init__.py": package,
        "house/stage.py": stage,
        "house/more.py": "def right():\n    return 1\n",
    }
    assert ("house.more", "right") in _tree(tmp_path, sources).reach([COMPUTE])


def test_a_text_that_names_a_module_or_a_definition_reaches_it(tmp_path: Path) -> None:
    sources = {
        "house/__init__.py": "",
        "house/stage.py": 'def compute():\n    return run(["-m", "house.child"])\n',
        "house/child.py": "def main():\n    return 1\n",
    }
    assert ("house.child", "main") in _tree(tmp_path / "whole", sources).reach([COMPUTE])
    sources["house/child.py"] += "def other():\n    return 2\n"
    sources["house/stage.py"] = sources["house/stage.py"].replace("house.child", "house.child:other")
    reached = _tree(tmp_path / "named", sources).reach([COMPUTE])
    assert reached.keys() == {COMPUTE, ("house.child", "other")}


def test_docstrings_count_where_code_reads_docstrings(tmp_path: Path) -> None:
    source = 'def add(x):\n    """Adds one."""\n    return x + 1\ndef compute():\n    return add, {}\n'
    digests = []
    for made in ("add.__name__", "add.__doc__"):
        for said in ("Adds one.", "Adds 1."):
            text = source.format(made).replace("Adds one.", said)
            tree = _tree(tmp_path / made / said, {"house/__init__.py": "", "house/stage.py": text})
            digests.append(tree.reach([COMPUTE]))
    assert digests[0] == digests[1]
    assert digests[2] != digests[3]


def test_plug_ins_that_a_function_asks_for_are_reached(tmp_path: Path) -> None:
    sources = {
        "house/__init__.py": "",
        "house/stage.py": 'def compute():\n    return plugins("tools")["x"], plugins("guests")\n',
        "house/tools.py": "SAW = 1\nNAIL = 2\n",
    }
    tree = _tree(tmp_path, sources, tools=[("house.tools", "SAW")])
    assert tree.reach([COMPUTE]).keys() == {COMPUTE, ("house.tools", "SAW")}


def test_versions_and_slices_of_stages_leave_a_digest_as_it_is(tmp_path: Path) -> None:
    first = 'S = Stage(name="s", version=1, slice=take)\ndef take():\n    return 1\n'
    second = 'S = Stage(name="s", version=2)  # new\n'
    third = 'S = Stage(name="t", version=1)\n'
    imported = "from erl_pipeline.plan.stage import Stage\n"
    found = [
        _tree(tmp_path / str(number), {"house/__init__.py": "", "house/stage.py": imported + source}).reach(
            [("house.stage", "S")]
        )
        for number, source in enumerate((first, second, third))
    ]
    assert found[0] == found[1]
    assert found[0] != found[2]
