import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datum.jsonb import text_literal
from penstock.ddl.syntax.lexer import Kind, quote_name, read
from penstock.errors import NeedsOperator


def texts(sql: str) -> list[str]:
    return [token.text for token in read(sql).tokens[:-1]]


def test_comments_vanish_and_places_stay() -> None:
    sql = "a /* b */ c -- d\n# e\n f"
    source = read(sql)
    assert texts(sql) == ["a", "c", "f"]
    assert len(source.text) == len(sql)
    assert [source.slice(t.start, t.end) for t in source.tokens[:-1]] == ["a", "c", "f"]


def test_version_comments_are_code_as_on_any_server() -> None:
    sql = "a /*!50100 b /* c */ d */ e"
    assert texts(sql) == ["a", "b", "d", "e"]
    assert "/*" not in read(sql).text


def test_tidb_comments_are_comments() -> None:
    assert texts("a /*T![clustered_index] CLUSTERED */ b") == ["a", "b"]


def test_two_dashes_without_a_space_are_an_expression() -> None:
    assert texts("1--1") == ["1", "-", "-", "1"]


@pytest.mark.parametrize(
    ("sql", "meaning"),
    [
        ("'it''s'", "it's"),
        (r"'it\'s'", "it's"),
        ('"say ""hi"""', 'say "hi"'),
        (r"'a\nb\\c\0d\%e'", "a\nb\\c\0d\\%e"),
        ("`a``b`", "a`b"),
        ("''", ""),
        ("'/* no comment */'", "/* no comment */"),
    ],
)
def test_quotes_and_escapes_read_as_in_mysql(sql: str, meaning: str) -> None:
    assert texts(sql) == [meaning]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("12", Kind.NUMBER), ("1.5", Kind.NUMBER), (".5", Kind.NUMBER), ("1e10", Kind.NUMBER),
        ("1.5e-3", Kind.NUMBER), ("0x1F", Kind.HEX), ("x'1F'", Kind.HEX), ("0b01", Kind.BITS),
        ("b'01'", Kind.BITS), ("1a", Kind.WORD), ("$a", Kind.WORD), ("表", Kind.WORD),
        ("e1", Kind.WORD),
    ],
)  # fmt: skip
def test_one_token_of_each_kind(sql: str, kind: Kind) -> None:
    tokens = read(sql).tokens
    assert [t.kind for t in tokens] == [kind, Kind.END]


@pytest.mark.parametrize("sql", ["'abc", '"abc', "`abc", "a /* b", "a /*! b", "'abc\\'"])
def test_what_never_ends_is_refused(sql: str) -> None:
    with pytest.raises(NeedsOperator, match="never ends"):
        read(sql)


def test_comments_for_mariadb_only_are_refused() -> None:
    with pytest.raises(NeedsOperator, match="MariaDB only"):
        read("a /*M!100100 b */")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_quoted_string_reads_back(text: str) -> None:
    assert [(t.kind, t.text) for t in read(text_literal(text)).tokens[:-1]] == [(Kind.STRING, text)]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_quoted_name_reads_back(name: str) -> None:
    assert [(t.kind, t.text) for t in read(quote_name(name)).tokens[:-1]] == [(Kind.QUOTED, name)]


@given(st.text("ab1`'\"/*!-#\\ \n.,();0x"))
def test_any_text_is_read_or_refused_and_places_are_true(sql: str) -> None:
    try:
        source = read(sql)
    except NeedsOperator:
        return
    assert len(source.text) == len(sql)
    ends = [0, *(t.end for t in source.tokens)]
    for before, token in zip(ends, source.tokens, strict=False):
        assert before <= token.start <= token.end <= len(sql)
