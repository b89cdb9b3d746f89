"""Files that name servers; that a pool follows them is in `test_server_pool.py`."""

from pathlib import Path

import pytest

from erl_pipeline.engines.vllm.settings import ServerAddress, read_server_list
from storage.errors import ConfigError


def test_a_list_has_the_keys_of_engine_servers(tmp_path: Path) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text(
        "- url: http://gpu-1:8000\n- url: http://gpu-2:8000\n  api_key_variable: KEY\n  copies: 7\n"
    )
    assert read_server_list(path) == (
        ServerAddress(url="http://gpu-1:8000"),
        ServerAddress(url="http://gpu-2:8000", api_key_variable="KEY", copies=7),
    )


@pytest.mark.parametrize("content", ["", "# none now\n", "[]"])
def test_no_server_is_a_list_too(tmp_path: Path, content: str) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text(content)
    assert read_server_list(path) == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("- url: [", "is not YAML"),
        ("http://gpu-1:8000", r"servers: 'http://gpu-1:8000'; allowed: a list"),
        ("- http://gpu-1:8000", r"servers\.0: .http://gpu-1:8000."),
        (
            "- url: gpu-1:8000",
            r"servers\.0\.url: gpu-1:8000: allowed are addresses such as http://gpu-1:8000",
        ),
        ("- url: http://gpu-1:8000\n  key: secret", r"servers\.0\.key: unknown"),
        ("- url: http://gpu-1:8000\n- url: http://gpu-1:8000/", "names http://gpu-1:8000 twice"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"(?s)^engine\.server_list: .*servers\.yaml .*{problem}"):
        read_server_list(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.server_list: .*none\.yaml cannot be read: No such file"):
        read_server_list(tmp_path / "none.yaml")
