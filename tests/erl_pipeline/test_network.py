import socket

import pytest

from erl_pipeline.network import Address, interface_of, listen, reason


def test_addresses_are_read_and_written() -> None:
    for text, address in (
        ("gpu-1:29500", Address("gpu-1", 29500)),
        ("[fd00::1]:29500", Address("fd00::1", 29500)),
    ):
        assert Address.parse(text) == address
        assert str(address) == text
    for wrong in ("gpu-1", ":29500", "gpu-1:port", "gpu-1:65536"):
        with pytest.raises(ValueError, match="allowed is HOST:PORT"):
            Address.parse(wrong)
    with pytest.raises(ValueError, match=r"'0\.0\.0\.0:29500': other machines cannot reach this"):
        Address.parse("0.0.0.0:29500")


def test_the_interface_of_an_address_is_one_of_this_machine() -> None:
    assert interface_of("127.0.0.2") == interface_of("127.0.0.1")
    with pytest.raises(OSError, match=r"no network interface with the address 192\.0\.2\.1"):
        interface_of("192.0.2.1")


def test_why_nobody_can_listen_there_is_told_without_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use") as raised:
        listen("127.0.0.1", taken.getsockname()[1])
    assert reason(raised.value) == "Address already in use"
    assert reason(OSError(socket.EAI_NONAME, "Name or service not known")) == "Name or service not known"
