"""What a message asks an operator to do at night loses nothing, or says first what it loses."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("pump", "drainer", "pumpclient", "proto/penstock")
LOSSY = re.compile(
    r"update-pump|update-drainer|lost-pump|skip-drainer|accept-loss|update its state"
    r"|mark it offline|give (it|them|this one) up"
)
"""Commands and settings after which somebody may continue without what a node holds."""
SAFE_FIRST = re.compile(
    r"\b(start|starts|restore|wait|put the files back|nothing was changed|let it hand over)\b"
)
CONSEQUENCE = re.compile(r"\b(lose|loses|lost|gone|never|refused|give them up|lets go)\b")


def messages() -> Iterator[tuple[str, str]]:
    """Yield place and text of every string that a program may show, docstrings and help apart."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            if not LOSSY.search(re.sub(r'"\s*f?"', "", text)):
                continue  # Also not where a text continues in the next line.
            tree = ast.parse(text)
            silent = {id(node) for node in _silent(tree)}
            for node in ast.walk(tree):
                if id(node) in silent:
                    continue
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Choice":
                    inner = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
                    silent |= set(map(id, inner))  # A command, and what it does: one message.
                    texts = [str(part.value) for part in inner]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", " ".join(texts)
                elif isinstance(node, ast.JoinedStr):
                    silent |= {id(part) for part in ast.walk(node)} - {id(node)}
                    parts = [p.value for p in node.values if isinstance(p, ast.Constant)]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", "…".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def _silent(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value  # A docstring, or the text about a constant.
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = ("help", "description")
            if node.func.attr in ("add_argument", "add_parser"):
                yield from (inner for word in node.args for inner in ast.walk(word))
                found = [word.value for word in node.keywords if word.arg in named]
                yield from (inner for value in found for inner in ast.walk(value))


def faults(found: list[tuple[str, str]]) -> list[str]:
    """Return the messages that name what may lose data, without a safe way or what it loses."""
    wrong = []
    for place, text in found:
        lossy = LOSSY.search(text)
        if lossy is None or "\n" in text:  # A page of help has a line for each command.
            continue
        safe = SAFE_FIRST.search(text)
        if safe is None or safe.start() > lossy.start() or CONSEQUENCE.search(text) is None:
            wrong.append(f"{place}: {text}")
    return wrong


def test_no_hint_sends_anybody_to_a_command_that_loses_data_without_saying_so() -> None:
    found = list(messages())
    named = [text for _, text in found if LOSSY.search(text)]
    assert len(named) > 5, "the walk has to meet those that there are"
    wrong = faults(found)
    assert not wrong, "\n".join(wrong)


def test_the_walk_finds_the_hints_that_sent_people_into_a_loss() -> None:
    bad = [
        "only a node that is online can be stopped; update its state if it is dead",
        "…; if it is dead for good, update its state",
        "etcd never heard that pump … is … (tell it: penstock ctl update-pump --node-id …"
        " --state …)",
        "(start it, or mark it offline with penstock ctl)",
    ]
    assert len(faults([("", text) for text in bad])) == len(bad)
