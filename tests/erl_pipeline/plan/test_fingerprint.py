import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from erl_pipeline.plan.fingerprint import (
    files_fingerprint,
    normalised_source,
    package_files,
    package_fingerprint,
)
from storage.errors import ConfigError

CODE = """\
def reward(found: bool) -> float:
    \"\"\"One for success.\"\"\"
    return 1.0 if found else 0.0
"""


def write(folder: Path, files: dict[str, str | bytes]) -> str:
    """Write files into a folder; returns the fingerprint of all files there."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return files_fingerprint([("x.py", folder / "x.py")])


@pytest.mark.parametrize(
    "same",
    [
        "# A comment.\n" + CODE.replace("return", "# Another.\n    return") + "\n\n",
        CODE.replace("(found: bool)", "(\n    found: bool,\n)"),
        CODE.replace('"""One for success."""', "'One for success.'"),
        CODE.replace("1.0 if found else 0.0", "(1.0 if found else 0.0)"),
        CODE.replace("1.0", "1.00"),
        CODE.replace("\n", "\r\n"),
        "\ufeff" + CODE,
    ],
)
def test_comments_and_formatting_change_nothing(same: str) -> None:
    assert normalised_source(same.encode()) == normalised_source(CODE)


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("1.0", "1.5"),
        CODE.replace("1.0", "1"),
        CODE.replace("1.0 if found else 0.0", "0.0 if found else 1.0"),
        CODE.replace("found: bool", "found"),
        CODE.replace("One", "Two"),
        "import os\n" + CODE,
        "def other() -> None: ...\n" + CODE,
    ],
)
def test_code_and_docstrings_count(other: str) -> None:
    assert normalised_source(other) != normalised_source(CODE)


def test_a_name_moved_between_fields_is_another_tree() -> None:
    assert normalised_source("f(x)") != normalised_source("f(*x)")
    assert normalised_source("f(x)") != normalised_source("f\nx")
    assert normalised_source("{**a}") != normalised_source("{None: a}")
    assert normalised_source("'None'") != normalised_source("None")
    assert normalised_source("b'a'") != normalised_source("'a'")


def test_texts_in_any_script_and_encoding_count_by_what_they_say(tmp_path: Path) -> None:
    utf8 = write(tmp_path / "utf8", {"x.py": "NAME = 'größer ↑ 🙂 \\ud800'\nα = 1\n"})
    escaped = write(
        tmp_path / "escaped", {"x.py": "NAME = 'gr\\xf6\\xdfer \\u2191 \\U0001f642 \\ud800'\nα = 1\n"}
    )
    assert utf8 == escaped
    plain = write(tmp_path / "plain", {"x.py": "WORD = 'größer'\n"})
    latin = write(
        tmp_path / "latin", {"x.py": "# -*- coding: latin-1 -*-\nWORD = 'größer'\n".encode("latin-1")}
    )
    assert plain == latin


def test_a_file_that_is_no_python_counts_with_its_bytes(tmp_path: Path) -> None:
    template = write(tmp_path, {"x.py": "class {{ name }}:  # A.\n"})
    assert write(tmp_path, {"x.py": "class {{ name }}:  # B.\n"}) != template
    deep = "x = " + "+".join(["1"] * 5_000)
    assert write(tmp_path, {"x.py": deep}) != write(tmp_path, {"x.py": deep + "\n"})
    assert write(tmp_path, {"x.py": b"NAME = '\xff'\n"}) != write(tmp_path, {"x.py": b"NAME = '\xfe'\n"})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in a folder that Python searches; `fresh_fingerprint` returns its fingerprint."""
    folder = tmp_path / "sampled_game"
    write(folder, {"x.py": "", "__init__.py": CODE, "rules/__init__.py": "", "rules/score.py": CODE})
    write(folder, {"x.py": "", "words.txt": "higher\nlower\n", "rules/table.json": "{}"})
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("sampled_game", None)
    package_fingerprint.cache_clear()


def fresh_fingerprint(name: str = "sampled_game") -> str:
    package_fingerprint.cache_clear()
    return package_fingerprint(name)


def test_a_package_counts_with_its_packages_and_its_data_files(package: Path) -> None:
    seen = [fresh_fingerprint()]
    for name, content in [
        ("rules/score.py", CODE.replace("1.0", "2.0")),
        ("words.txt", "higher\nlower\n\n"),
        ("rules/table.json", "{ }"),
        ("rules/new.py", ""),
    ]:
        (package / name).write_text(content)
        seen.append(fresh_fingerprint())
    (package / "rules/new.py").rename(package / "rules/renamed.py")
    seen.append(fresh_fingerprint())
    assert len(set(seen)) == 6


def test_a_package_that_a_link_leads_to_counts(package: Path, tmp_path: Path) -> None:
    write(tmp_path / "shared", {"x.py": "", "__init__.py": "", "tools.py": CODE})
    write(tmp_path / "data", {"x.py": ""})
    seen = [fresh_fingerprint()]
    (package / "shared").symlink_to(tmp_path / "shared")
    seen.append(fresh_fingerprint())
    (tmp_path / "shared" / "tools.py").write_text("")
    seen.append(fresh_fingerprint())
    assert len(set(seen)) == 3
    (package / "data").symlink_to(tmp_path / "data")
    (package / "rules" / "above").symlink_to(package)
    assert fresh_fingerprint() == seen[-1]


def test_packages_that_link_to_each_other_count_once(package: Path) -> None:
    for name in ("first", "second"):
        (package / name).mkdir()
        (package / name / "__init__.py").touch()
    (package / "first" / "other").symlink_to(package / "second")
    (package / "second" / "other").symlink_to(package / "first")
    names = [name for name, _ in package_files(package) if "other" in name]
    assert names == ["first/other/__init__.py", "second/other/__init__.py"]


def test_a_folder_that_may_not_be_read_is_no_code(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_fingerprint(package_files(package))
    (package / "data").mkdir()
    listed = Path.iterdir

    def refuse(folder: Path) -> Iterator[Path]:
        if folder.name == "data":
            raise PermissionError
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert files_fingerprint(package_files(package)) == before


def test_it_does_not_depend_on_how_deep_the_caller_is(tmp_path: Path) -> None:
    """Code that is nested nearly too deeply can be read at the top of a stack alone."""
    deep = tmp_path / "deep.py"

    def fingerprint(depth: int) -> str:
        return files_fingerprint([("deep.py", deep)]) if depth == 0 else fingerprint(depth - 1)

    found = []
    for terms in range(300, 1000, 25):
        deep.write_text(" + ".join(["x"] * terms))
        found.append((fingerprint(0), fingerprint(100)))
    assert all(shallow == deeper for shallow, deeper in found)


def test_what_tools_leave_beside_the_code_does_not_count(package: Path) -> None:
    before = fresh_fingerprint()
    write(package, {"x.py": "", "rules/__pycache__/score.cpython-311.pyc": "1", "old.pyc": "2"})
    write(
        package, {"x.py": "", ".words.txt.swp": "3", ".mypy_cache/3.11/a.json": "{}", "rules/.DS_Store": "4"}
    )
    (package / "rules/score.py").write_text(f"# A comment.\n{CODE}")
    assert fresh_fingerprint() == before


def test_only_modules_count_in_a_folder_that_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "loose_modules", {"x.py": CODE})
    before = fresh_fingerprint("loose_modules")
    (tmp_path / "loose_modules" / ".#x.py").symlink_to("me@here.123:456")  # Emacs locks what it edits so.
    (tmp_path / "loose_modules" / "old.py").mkdir()
    (tmp_path / "loose_modules" / ".saved.py").write_text("")
    assert fresh_fingerprint("loose_modules") == before


def test_the_modules_of_all_folders_of_a_package_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (second, first):
        monkeypatch.syspath_prepend(place)
    write(first / "loose_parts", {"x.py": CODE})
    write(second / "loose_parts", {"x.py": "", "y.py": CODE})
    both = fresh_fingerprint("loose_parts")
    # Of two modules of a name the first is imported.
    assert both == files_fingerprint(
        [("x.py", first / "loose_parts" / "x.py"), ("y.py", second / "loose_parts" / "y.py")]
    )
    write(second / "loose_parts", {"x.py": "", "y.py": ""})
    assert fresh_fingerprint("loose_parts") != both


def test_it_does_not_depend_on_where_the_package_lies(package: Path, tmp_path: Path) -> None:
    before = fresh_fingerprint()
    moved = tmp_path / ".venv" / "elsewhere"
    moved.mkdir(parents=True)
    package.rename(moved / "sampled_game")
    sys.path.insert(0, str(moved))
    try:
        assert fresh_fingerprint() == before
    finally:
        sys.path.remove(str(moved))


def test_one_module_that_is_no_package_counts_alone(package: Path) -> None:
    (package.parent / "sampled_module.py").write_text(CODE)
    before = fresh_fingerprint("sampled_module")
    assert before == files_fingerprint([("sampled_module.py", package.parent / "sampled_module.py")])
    (package.parent / "sampled_module.py").write_text(CODE.replace("1.0", "2.0"))
    assert fresh_fingerprint("sampled_module") != before


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.inner", "sys"])
def test_a_package_without_sources_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"package {name} has no source files"):
        fresh_fingerprint(name)
