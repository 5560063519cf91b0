"""Encrypted passwords: as the settings of TiDB-Binlog's Drainer may contain them.

    text       base64 of: 16 bytes at random | "@" | the password under AES in CFB mode
    key        hexadecimal in BINLOG_SECRET_KEY: 16, 24 or 32 bytes; else a publicly known key

They hide a password from a glance, and under the public key from nothing more.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from penstock.codes import Code
from penstock.errors import NeedsOperator

HAS_OWN_KEY: Final = "BINLOG_SECRET_KEY"
_COMMON_KEY: Final = "a529b7665997f043a30ac8fadcb51d6aa032c226ab5b7750530b12b8c1a16a48"
_BLOCK_BYTES: Final = 16
_SEPARATOR: Final = b"@"
_KEY_BYTES: Final = (16, 24, 32)


def encrypted(password: str, env: Mapping[str, str]) -> str:
    """Encrypt a password; the result differs each time."""
    first = secrets.token_bytes(_BLOCK_BYTES)
    hidden = _cfb(_key(env), first, password.encode(), is_hidden=False)
    return base64.b64encode(first + _SEPARATOR + hidden).decode()


def decrypted(text: str, env: Mapping[str, str]) -> str:
    """Decrypt a password; raise `NeedsOperator`, which does not contain the text."""
    key = _key(env)
    try:
        data = base64.b64decode(text, validate=True)
        first, separator = data[:_BLOCK_BYTES], data[_BLOCK_BYTES : _BLOCK_BYTES + 1]
        if separator != _SEPARATOR:
            raise ValueError("no separator")
        return _cfb(key, first, data[_BLOCK_BYTES + 1 :], is_hidden=True).decode()
    except (binascii.Error, ValueError) as error:
        raise NeedsOperator(
            "an encrypted password is not one, or is of another key",
            f"set {HAS_OWN_KEY} as where it was encrypted; or use password-file instead",
            Code.PASSWORD_UNREADABLE,
        ) from error


def _key(env: Mapping[str, str]) -> bytes:
    try:
        key = bytes.fromhex(env.get(HAS_OWN_KEY) or _COMMON_KEY)
    except ValueError:
        key = b""
    if len(key) not in _KEY_BYTES:
        raise NeedsOperator(
            f"{HAS_OWN_KEY} is no key",
            "it is 32, 48 or 64 hexadecimal digits",
            Code.PASSWORD_UNREADABLE,
        )
    return key


def _cfb(key: bytes, first: bytes, data: bytes, *, is_hidden: bool) -> bytes:
    """Return the other form of `data`: each block is XORed with the enciphered previous block.

    Written here, because the library is about to move its CFB to the module `decrepit`.
    """
    encipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update
    made = bytearray()
    before = first
    for at in range(0, len(data), _BLOCK_BYTES):
        piece = data[at : at + _BLOCK_BYTES]
        other = bytes(a ^ b for a, b in zip(piece, encipher(before), strict=False))
        made += other
        before = piece if is_hidden else other
    return bytes(made)
