"""Drawing: HTML and SVG from the templates, escaped by Jinja2.

Characters that a document must not contain (control characters, halves of a surrogate pair) become
U+FFFD, so that a page is also well-formed XML.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ctl.console import wording
from ctl.console.cluster_state import Level
from penstock import __version__

_CHOICE: Final = re.compile(r"`(.+?)`: (.+)|((?:penstock|mysql-source) .+?): (.+)", re.DOTALL)
_NO_CHARACTER: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def draw(template: str, macro: str, /, **values: object) -> Markup:
    """Return the output of a macro of a template."""
    module = _ENVIRONMENT.get_template(f"{template}.html").module
    return Markup(getattr(module, macro)(**values))


def _clean(value: object) -> object:
    """Return an expression's value for the output; None adds nothing."""
    if isinstance(value, str):
        kind = Markup if isinstance(value, Markup) else str
        return kind(_NO_CHARACTER.sub("\ufffd", value))
    return "" if value is None else value


def _decision(choice: str) -> tuple[str, str]:
    """Return the command of a choice, or nothing, and its meaning."""
    found = _CHOICE.fullmatch(choice)
    return (found[1] or found[3], found[2] or found[4]) if found else ("", choice)


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("ctl.console"),
    autoescape=True,
    finalize=_clean,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(Level=Level, version=__version__)
_ENVIRONMENT.filters.update(
    duration=wording.duration,
    quantity=wording.quantity,
    byte_rate=wording.byte_rate,
    size=wording.size,
    counted=wording.count,
    moment=wording.moment,
    clock=wording.clock,
    decision=_decision,
    path=partial(quote, safe=""),
)
