"""Checks commit subjects: `area: imperative`, at most 72 characters.

    python -m deploy.commit_subjects FILE   checks the message in a file, for a commit-msg hook
    python -m deploy.commit_subjects        checks all commits since the rule exists

The reason for a change belongs in the body of the message. Exit code 1 if a subject breaks the
rule.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

CHARACTERS_MAX = 72
_SINCE = "35e9a59f1f7d"
_SUBJECT = re.compile(r"(?:Merge |Revert |fixup! |squash! |[a-z][\w ,./-]*: \S)")


def problems(subjects: Iterable[str]) -> list[str]:
    found = []
    for subject in subjects:
        if len(subject) > CHARACTERS_MAX:
            found.append(f"{len(subject)} characters, at most {CHARACTERS_MAX}: {subject}")
        elif not _SUBJECT.match(subject):
            found.append(f"not of the form `area: imperative`: {subject}")
    return found


def main(arguments: Sequence[str]) -> int:
    if arguments:
        text = Path(arguments[0]).read_text(encoding="utf-8")
        subjects = [line for line in text.splitlines() if not line.startswith("#")][:1]
    else:
        command = ["git", "log", "--format=%s", f"{_SINCE}.."]
        done = subprocess.run(command, capture_output=True, text=True)
        subjects = done.stdout.splitlines()  # None without a repository or its history.
    found = problems(subjects)
    sys.stderr.writelines(f"commit subject: {line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
