from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from erl_pipeline.plan.source_tree import SourceTree


def _tree(folder: Path, sources: Mapping[str, str], **plugged_in: list[str]) -> SourceTree:
    for name, source in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    return SourceTree(folder, ("house",), plugged_in)


def test_imports_are_followed_also_within_functions_but_not_those_for_types(tmp_path: Path) -> None:
    tree = _tree(
        tmp_path,
        {
            "house/__init__.py": "",
            "house/stage.py": (
                "import json\n"
                "from typing import TYPE_CHECKING\n"
                "from house.rooms import kitchen\n"
                "if TYPE_CHECKING:\n    from house.drawing import Drawing\n"
                "def compute():\n    import house.cellar\n"
            ),
            "house/rooms/__init__.py": "from .hall import LENGTH\n",
            "house/rooms/hall.py": "LENGTH = 3\n",
            "house/rooms/kitchen.py": "",
            "house/cellar.py": "import house.stage\n",
            "house/drawing.py": "",
        },
    )
    assert tree.reach("house.stage") == {
        "house",
        "house.stage",
        "house.rooms",
        "house.rooms.hall",
        "house.rooms.kitchen",
        "house.cellar",
    }


def test_plug_ins_that_a_module_asks_for_are_all_reached(tmp_path: Path) -> None:
    tree = _tree(
        tmp_path,
        {
            "house/stage.py": 'from house.found import plugins\nplugins("tools")["x"]\nplugins("guests")\n',
            "house/found.py": "",
            "house/tools/__init__.py": "",
            "house/tools/saw.py": "",
        },
        tools=["house.tools"],
    )
    assert tree.reach("house.stage") == {"house.stage", "house.found", "house.tools", "house.tools.saw"}


def test_comments_docstrings_and_versions_of_stages_leave_a_digest_as_it_is(tmp_path: Path) -> None:
    first = 'def f(x):\n    """Adds."""\n    return x + 1\nS = Stage(name="s", version=1)\n'
    second = '"""New."""\ndef f(x):  # adds\n    return (x + 1)\nS = Stage(name="s", version=2)\n'
    third = 'def f(x):\n    return x + 2\nS = Stage(name="s", version=1)\n'
    digests = []
    for source in (first, second, third):
        digests.append(_tree(tmp_path, {"house/stage.py": source}).digest("house.stage"))
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]
