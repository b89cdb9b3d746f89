import pytest

from erl_pipeline.config.base import checked_address


def test_an_address_is_kept_without_a_slash_at_its_end() -> None:
    assert checked_address("http://gpu-1:8000/") == "http://gpu-1:8000"
    assert checked_address("https://[::1]:80/x") == "https://[::1]:80/x"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("gpu-1:8000", "gpu-1:8000: allowed are addresses such as"),
        ("ftp://gpu-1", "ftp://gpu-1: allowed are addresses such as"),
        ("http://user:secret@gpu-1", "^it holds a name, a password or a query"),
        ("http://gpu-1?key=secret", "^it holds a name, a password or a query"),
    ],
)
def test_what_is_no_address_or_holds_a_key_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked_address(url)
