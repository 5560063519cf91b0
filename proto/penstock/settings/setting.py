"""What the settings of all nodes share: fields with help, and checks with a hint."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from penstock.errors import NeedsOperator


def setting(default: Any, text: str, **extra: str) -> Any:
    """Return a dataclass field with the text that `--help` shows; `flag="-L"` adds a short flag."""
    return field(default=default, metadata={"help": text, **extra})


def check_address(name: str, address: str) -> None:
    """Raise `NeedsOperator` unless `address` is host:port; empty is for whoever has a default.

    A PD's may begin with https://, or http://.
    """
    if name == "pd_address":
        address = address.removeprefix("https://").removeprefix("http://")
    host, _, port = address.rpartition(":")
    if not address and name != "addr":
        return
    if not host or "/" in address or not port.isdecimal() or int(port) > 65535:
        raise out_of_range(name, address, "write host:port, such as 127.0.0.1:8250")


def check_advertised(address: str) -> None:
    """Raise `NeedsOperator` for an address that means every interface: nobody can connect to it."""
    if address.startswith("0.0.0.0:"):
        raise out_of_range("advertise_addr", address, "others cannot connect to 0.0.0.0")


def out_of_range(name: str, value: object, hint: str) -> NeedsOperator:
    """Return the error for a setting whose value cannot be."""
    return NeedsOperator(f"{name.replace('_', '-')} is {value!r}", hint=hint)
