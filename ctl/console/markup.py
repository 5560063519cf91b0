"""Markup: HTML and SVG that are escaped by construction.

`tag` makes an element. Its content is either `Html`, which a `tag` made, or a text, which is
escaped; no third kind exists. Characters that a document must not contain (control characters,
halves of a surrogate pair) become U+FFFD, so that the result is also well-formed XML.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from typing import Final

_VOID: Final = frozenset({"br", "circle", "input", "line", "link", "meta", "path", "rect"})
_NO_CHARACTER: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """A text that is markup."""

    __slots__ = ()


def escaped(text: str) -> Html:
    return Html(html.escape(_NO_CHARACTER.sub("\ufffd", text)))


def joined(*content: object) -> Html:
    """Return all content as concatenated markup; None adds nothing."""
    return Html("".join(_pieces(content)))


def tag(name: str, /, *content: object, **attributes: object) -> Html:
    """Return an element.

    An attribute's `_` is written as `-`, except a final `_`, which is dropped: `class_`,
    `aria_label`. None and False omit the attribute, True makes an attribute without a value.
    """
    return element(name, content, attributes)


def element(name: str, content: Iterable[object], attributes: Mapping[str, object]) -> Html:
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped("" if value is True else str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{joined(content)}</{name}>")


def _pieces(content: Iterable[object]) -> Iterable[str]:
    for each in content:
        if isinstance(each, Html):
            yield each
        elif isinstance(each, str):
            yield escaped(each)
        elif isinstance(each, Iterable):
            yield from _pieces(each)
        elif each is not None:
            yield escaped(str(each))
