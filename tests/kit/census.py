"""Census: how large the project is, and how often its prose uses a pattern that it should not.

What is counted is the product: Python modules without generated code and without tests, the samples
of all settings, and the documents. Patterns are counted per 10,000 words of documents, and of
docstrings and comments; code in them does not count.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.site import options_of_a_writer
from penstock.codes import Code

PATTERNS: Final[Mapping[str, str]] = {
    "headless what": (
        r"\b(?:of|to|for|in|with|by|from|after|before|about|at|and|that|is|are|\w+s) what"
        r" (?:is|was|has|had|it|they|an?|the|no|this|one|others?|\w+s)\b"
    ),
    "pronoun one": (
        r"\b(?:that|the|an?|another|other|each|every|which|no|this|only|first|last|new|old) ones?\b"
    ),
    "by itself": r"\bby (?:itself|themselves)\b|\bof (?:its|their) own\b",
    "is there": r"\b(?:is|are|was|were|be) (?:not )?there\b(?! (?:an?|any|no|is|are|to)\b)",
    "begin again": r"\bbeg[aiu]ns? (?:again|anew)\b|\bbegun\b|\bbegins? with\b",
    "is no": r"\b(?:is|are|was|were) no (?!longer|more|such)\w+\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "final too": r", too\b",
    "as X": r", as (?:on|in|of|from|after|by|at|when|with|one|those|an?|the|its|no|every)\b",
    "in order": r"\b[Mm]eanwhile\b|\bin order\b(?! (?:to|of))|\bin (?:(?:its|their) )?turn\b",
}
_KEY: Final = re.compile(r"^(?:#? ?[a-z][a-z0-9-]* = |# \[)", re.MULTILINE)
"""A key of a sample, or the head of an example of tables."""
_NO_CODE: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT}


def sizes(modules: Iterable[Path], samples: Iterable[Path]) -> dict[str, int]:
    lines = code = classes = count = 0
    for path in modules:
        text = path.read_text(encoding="utf-8")
        lines += text.count("\n")
        code += len(_lines_of_code(text))
        classes += sum(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(text)))
        count += path.stem != "__init__"
    keys = sum(len(_KEY.findall(path.read_text(encoding="utf-8"))) for path in samples)
    return {
        "lines": lines,
        "lines of code": code,
        "modules": count,
        "classes": classes,
        "settings": keys + len(list(options_of_a_writer())),
        "codes": len(Code),
    }


def patterns(texts: Sequence[str]) -> dict[str, float]:
    """Count each pattern per 10,000 words."""
    prose = [_without_code(text) for text in texts]
    words = sum(len(text.split()) for text in prose)
    return {
        name: round(1e4 * sum(len(re.findall(pattern, text)) for text in prose) / words, 1)
        for name, pattern in PATTERNS.items()
    }


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def _lines_of_code(text: str) -> set[int]:
    """Return the numbers of the lines that hold more than comments and docstrings."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.string.strip():
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _without_code(text: str) -> str:
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"`[^`\n]*`", "X", text))
