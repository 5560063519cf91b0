"""MariaDB's own test files, read as far as their SQL goes. Pure, but for reading the files.

A file is a list of steps: statements, and which connection they run on. What belongs to the test
program is stepped over; `--source` is followed; blocks of `if` and `while` run once; variables that
`let` sets to a text are put in where `eval` uses them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_COMMANDS_TEXT = b"""
    append_file assert backup_tables cat_file change_user character_set chmod copy_file
    copy_files_wildcard die diff_files dirty_close disable_abort_on_error disable_cli_mode
    disable_column_names disable_connect_log disable_cursor_protocol disable_info disable_metadata
    disable_non_blocking_api disable_parsing disable_prepare_warnings disable_ps2_protocol
    disable_ps_protocol disable_query_log disable_reconnect disable_result_log disable_rpl_parse
    disable_service_connection disable_session_track_info disable_testcase disable_view_protocol
    disable_warnings disconnect echo enable_abort_on_error enable_cli_mode enable_column_names
    enable_connect_log enable_cursor_protocol enable_info enable_metadata enable_non_blocking_api
    enable_parsing enable_prepare_warnings enable_ps2_protocol enable_ps_protocol enable_query_log
    enable_reconnect enable_result_log enable_rpl_parse enable_service_connection
    enable_session_track_info enable_testcase enable_view_protocol enable_warnings end end_timer
    error evalp_result exec exec_in_background execw exit file_exists force-cpdir force-rmdir
    horizontal_results inc dec list_files list_files_append_file list_files_write_file
    lowercase_result mkdir move_file optimizer_trace output perl ping query_get_value
    query_horizontal query_sorted real_sleep reap remove_file remove_files_wildcard replace_column
    replace_numeric_round replace_regex replace_result require reset_connection result
    result_format rmdir rmdir save_master_pos save_master_gtid send_quit send_shutdown
    shutdown_server skip skip_if_hypergraph sleep sorted_result start_timer sync_slave_with_master
    sync_with_master sync_with_master_gtid system timer truncate_file vertical_results
    wait_for_slave_to_stop write_file write_line resetconnection rpl_parse partially_sorted_result
"""
_COMMANDS = frozenset(_COMMANDS_TEXT.split())
_RUNS = (b"query_vertical", b"query", b"evalp", b"eval", b"send_eval", b"send")
_UNTIL_MARK = (b"perl", b"write_file", b"append_file")
_LET = re.compile(rb"\s*\$(\w+)\s*=(.*)", re.DOTALL)
_VARIABLE = re.compile(rb"\$(\w+)")
_DEPTH_MAX = 8


@dataclass(frozen=True, slots=True)
class Step:
    """A statement, and the name of the connection that it runs on."""

    statement: bytes
    connection: str


@dataclass(slots=True)
class Reading:
    """What is read of one file, and what could not be."""

    root: Path
    """The folder that `--source` starts from."""
    unread: int = 0
    delimiter: bytes = b";"
    connection: str = "default"
    variables: dict[bytes, bytes] = field(default_factory=dict)
    sources: int = 0

    def steps(self, path: Path, depth: int = 0) -> Iterator[Step]:
        text = path.read_bytes()
        at = 0
        while at < len(text):
            command, at = self._command(text, at)
            if not command:
                continue
            word = re.match(rb"[\w-]*", command)
            verb = word[0].lower() if word else b""
            if verb in _UNTIL_MARK:
                at = _after_mark(text, at, command)
            elif verb in (b"exit", b"die", b"skip") and depth == 0:
                return
            elif verb in (b"source", b"connect", b"connection", b"delimiter", b"let"):
                yield from self._directive(verb, command[len(verb) :].strip(), path, depth)
            elif verb not in _COMMANDS:
                yield from self._statement(verb, command)

    def _command(self, text: bytes, at: int) -> tuple[bytes, int]:
        """Return what stands at a place, without its delimiter, and where it ends."""
        at += len(text[at:]) - len(text[at:].lstrip())
        line_end = text.find(b"\n", at)
        line_end = len(text) if line_end < 0 else line_end
        if text.startswith(b"#", at) or at >= len(text):
            return b"", line_end + 1
        if text.startswith(b"--", at):
            return text[at + 2 : line_end].strip(), line_end + 1
        if text[at : at + 1] in (b"{", b"}"):
            return b"", at + 1
        block = re.compile(rb"(if|while)\s*\(", re.IGNORECASE).match(text, at)
        if block:
            return b"", _block_start(text, at, line_end)
        end = _delimited(text, at, self.delimiter)
        return text[at:end].strip(), end + len(self.delimiter)

    def _directive(self, verb: bytes, rest: bytes, path: Path, depth: int) -> Iterator[Step]:
        if verb == b"delimiter":
            self.delimiter = rest.split()[0] if rest else b";"
        elif verb == b"connect":
            self.connection = rest.strip(b"( ").split(b",")[0].strip().decode("latin1")
        elif verb == b"connection":
            self.connection = rest.strip().decode("latin1")
        elif verb == b"let":
            self._let(rest)
        else:
            found = self._included(self._filled(rest).decode("latin1"), path)
            if found is None or depth >= _DEPTH_MAX or self.sources > 200:
                self.unread += 1
                return
            self.sources += 1
            delimiter = self.delimiter
            yield from self.steps(found, depth + 1)
            self.delimiter = delimiter

    def _included(self, name: str, path: Path) -> Path | None:
        name = name.strip().strip("'\"")
        for folder in (self.root, path.parent, self.root / "main"):
            if (folder / name).is_file():
                return folder / name
        return None

    def _let(self, rest: bytes) -> None:
        found = _LET.match(rest)
        if found is None:
            return
        name, value = found[1], found[2].strip()
        if value.startswith((b"`", b"query_get_value")):
            self.variables.pop(name, None)
        else:
            self.variables[name] = self._filled(value)

    def _filled(self, text: bytes) -> bytes:
        return _VARIABLE.sub(lambda m: self.variables.get(m[1], m[0]), text)

    def _statement(self, verb: bytes, command: bytes) -> Iterator[Step]:
        is_run = verb in _RUNS
        if is_run:
            command = command[len(verb) :].strip()
        if verb in (b"eval", b"evalp", b"send_eval"):
            command = self._filled(command)
            if _VARIABLE.search(command):
                self.unread += 1
                return
        if command:
            yield Step(command, self.connection)


def _after_mark(text: bytes, at: int, command: bytes) -> int:
    """Return where a file's or program's text ends that stands after its command."""
    words = command.split()
    mark = words[-1] if len(words) > (1 if words[0] == b"perl" else 2) else b"EOF"
    pattern = rb"^\s*" + re.escape(mark.rstrip(b";")) + rb"\s*$"
    found = re.compile(pattern, re.MULTILINE).search(text, at)
    return found.end() if found else len(text)


def _block_start(text: bytes, at: int, line_end: int) -> int:
    """Return where the body of an `if` or `while` begins."""
    opened = text.find(b"{", at)
    return opened + 1 if 0 <= opened <= line_end + 200 else line_end + 1


_PIECE = re.compile(
    rb"""
    '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `[^`]*`
    | \#[^\n]* | --\s[^\n]* | /\*.*?\*/ | [\w\s,()=]+
    """,
    re.DOTALL | re.VERBOSE,
)
"""What holds no delimiter, but for delimiters that are words."""


def _delimited(text: bytes, at: int, delimiter: bytes) -> int:
    """Return where the delimiter stands that ends what begins at a place."""
    is_word = re.search(rb"[\w\s,()=]", delimiter) is not None
    while at < len(text):
        if text.startswith(delimiter, at):
            return at
        piece = None if is_word and text[at : at + 1].isalnum() else _PIECE.match(text, at)
        at = piece.end() if piece else at + 1
    return at
