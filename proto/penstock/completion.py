"""Command `penstock completion SHELL`: prints a script that completes `penstock` in a shell.

The words are those of each program's own parser. A program whose extra is not installed is only a
name. The printed script starts no Penstock, so a Tab takes milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.node import command
from penstock.settings.load import Parser

_PROBES: Final[Mapping[str, Sequence[str]]] = {
    "run": ("", "status"),
    "source": ("", "check", "status"),
    "drainer": ("", *(f"ddl {verb} 0 0" for verb in ("list", "track", "replace", "skip", "undo"))),
}
"""Arguments with which a program with several parsers builds each of them."""

Places = dict[str, dict[str, str]]
"""The words that may follow `penstock` and the words of the place, and their meaning."""


class _Found(BaseException):
    """A program was about to parse its arguments with this parser."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def main(argv: Sequence[str] | None = None) -> int:
    return command.run("penstock completion", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = Parser(
        prog="penstock completion",
        description="Print a script that completes the commands and options of penstock.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    shell = parser.parse_args(argv).shell
    sys.stdout.write(script(shell, places()))
    return command.DONE


def places() -> Places:
    """Return all places of the programs that are installed; a place begins with a blank."""
    from penstock.__main__ import PROGRAMS

    found: Places = {"": {name: each.purpose for name, each in PROGRAMS.items()}}
    for name, program in PROGRAMS.items():
        for arguments in _PROBES.get(name, ("",)):
            parser = _parser_of(program.module, arguments.split())
            if parser is None:
                break
            for place, words in _words(parser):
                found[place] = found.get(place, {}) | words
                above, _, last = place.rpartition(" ")
                found.setdefault(above, {}).setdefault(last, "")
            for first in arguments.split()[:1]:
                found[f" {name}"].setdefault(first, "")
    return found


def _parser_of(module: str, argv: Sequence[str]) -> argparse.ArgumentParser | None:
    """Return the parser that a program builds for `argv`, or None if its extra is missing."""

    def stop(parser: argparse.ArgumentParser, *_: Any) -> Any:
        raise _Found(parser)

    usual = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = stop  # type: ignore[method-assign, assignment]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(module).main(argv)
    except _Found as found:
        return found.parser
    except ImportError:
        pass
    finally:
        argparse.ArgumentParser.parse_args = usual  # type: ignore[method-assign]
    return None


def _words(parser: argparse.ArgumentParser) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each place that a parser reads, with the words offered there."""
    place = parser.prog.removeprefix("penstock")
    words: dict[str, str] = {}
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        choices = dict.fromkeys(map(str, action.choices or ()), "")
        if isinstance(action, argparse._SubParsersAction):
            choices |= {each.dest: each.help or "" for each in action._choices_actions}
            for sub in action.choices.values():
                yield from _words(sub)
        if not action.option_strings:
            words |= choices
        for flag in action.option_strings:
            words[flag] = parser._get_formatter()._expand_help(action) if action.help else ""
            if action.nargs != 0:
                yield f"{place} {flag}", choices
    yield place, words


def script(shell: str, found: Places) -> str:
    """Return the script: a table of the places, and the functions that look in it."""
    places_of: dict[tuple[str, ...], list[str]] = {}
    for place, words in found.items():
        offered = tuple(_offer(shell, word, about) for word, about in words.items())
        places_of.setdefault(offered, []).append(shlex.quote(place))
    cases = []
    for offered, places in places_of.items():
        shown = shlex.join(("printf", "%s\\n", *offered)) if offered else "true"
        if shell == "fish":
            cases.append(f"case {' '.join(places)}\n  {shown if offered else _FISH_FILES}\n")
        else:
            cases.append(f"{'|'.join(places)}) {shown} ;;\n")
    return _SHAPES[shell].replace("CASES\n", "".join(cases))


def _offer(shell: str, word: str, about: str) -> str:
    about = textwrap.shorten(about, 70, placeholder=" …")
    return word if shell == "bash" else f"{word}{':' if shell == 'zsh' else chr(9)}{about}"


_FISH_FILES: Final = "__fish_complete_path (commandline -ct)"
_SH: Final = """\
_penstock_words() {
case $1 in
CASES
*) return 1 ;;
esac
}
_penstock_after() {
  local at= word
  for word; do
    case $at in
      *' -'*) at=${at% *} ;;
      *) if _penstock_words "$at $word" > /dev/null; then at="$at $word"; fi ;;
    esac
  done
  _penstock_words "$at"
}
"""
_SHAPES: Final = {
    "bash": f"""\
{_SH}_penstock() {{
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "$(_penstock_after "${{COMP_WORDS[@]:1:COMP_CWORD-1}}")" -- "$2"))
}}
complete -o default -F _penstock penstock
""",
    "zsh": f"""\
#compdef penstock
{_SH}_penstock() {{
  local -a found
  found=("${{(@f)$(_penstock_after "${{(@)words[2,CURRENT-1]}}")}}")
  if [[ -n $found ]]; then _describe penstock found; else _files; fi
}}
compdef _penstock penstock
if [[ ${{funcstack[1]-}} = _penstock ]]; then _penstock; fi
""",
    "fish": """\
function __penstock_words
switch "$argv[1]"
CASES
case '*'
  return 1
end
end
function __penstock_after
  set -l at ''
  for word in (commandline -opc)[2..-1]
    if string match -q '* -*' -- "$at"
      set at (string replace -r ' [^ ]*$' '' -- "$at")
    else if __penstock_words "$at $word" > /dev/null
      set at "$at $word"
    end
  end
  __penstock_words "$at"
end
complete -c penstock -f -a '(__penstock_after)'
""",
}


if __name__ == "__main__":
    raise SystemExit(main())
