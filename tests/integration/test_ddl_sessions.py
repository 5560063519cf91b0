"""DDL that computes values, in many sessions of real servers: downstream equals upstream."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local.sql_server import SqlServer
from tests.kit.servers.binlog_server import MARIADB, MYSQL
from tests.kit.workloads.ddl_sessions import DOWN, ROWS, TABLE, UP, Way, begin, ddl, ran, session

_SERVERS = {MARIADB: "mariadb_binlog", MYSQL: "mysql_server"}
_QUICK = ((MARIADB, MARIADB), (MYSQL, MARIADB))
_OF_ONE_KIND = ((MARIADB, MARIADB), (MYSQL, MYSQL))
_OF_TWO_KINDS = ((MARIADB, MYSQL), (MYSQL, MARIADB))


def on(*pairs: tuple[str, str]) -> list[Any]:
    """Return the parameters of a test from one server to another, or to itself."""
    marks = {MARIADB: pytest.mark.mariadb, MYSQL: pytest.mark.mysql}
    return [pytest.param(p, marks=[marks[kind] for kind in set(p)], id="_to_".join(p))
            for p in pairs]  # fmt: skip


@pytest.fixture
def way(request: pytest.FixtureRequest, pair: tuple[str, str]) -> Iterator[Way]:
    """From a server to a server, which may be the same one."""
    upstream, downstream = (request.getfixturevalue(_SERVERS[kind]) for kind in pair)
    prepare(upstream, downstream)
    with closing(Way(upstream, downstream)) as made:
        yield made


def prepare(upstream: SqlServer, downstream: SqlServer) -> None:
    downstream.run("DROP DATABASE IF EXISTS penstock_ddl", f"DROP DATABASE IF EXISTS {DOWN}")
    upstream.run(f"DROP DATABASE IF EXISTS {UP}", f"CREATE DATABASE {UP} CHARACTER SET utf8mb4"
                 " COLLATE utf8mb4_bin")  # fmt: skip


def start(way: Way) -> None:
    cursor = begin(way.upstream, ["SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'"])
    cursor.execute(f"DROP TABLE IF EXISTS {UP}.t")
    cursor.execute(TABLE)
    for row in ROWS:
        cursor.execute(f"INSERT INTO {UP}.t VALUES {row}")
    cursor.connection.close()
    way.follow()
    way.copy_rows("t")


def tried(way: Way, seed: int) -> Counter[str]:
    """Run a few DDL in a random session; return what became of each."""
    rng = random.Random(seed)
    start(way)
    found: Counter[str] = Counter()
    settings = session(rng, is_mariadb=way.is_mariadb)
    cursor = begin(way.upstream, settings)
    for _ in range(rng.randint(1, 3)):
        sql = ddl(rng)
        if not ran(cursor, sql):
            found["refused by the server"] += 1
            continue
        try:
            way.follow()
        except NeedsOperator as error:
            found.update(("refused", error.problem[:300]))
            break
        found["followed"] += 1
        check(way, seed, settings, sql)
    cursor.connection.close()
    return found


def check(way: Way, *where: object) -> None:
    up, down = way.rows("t")
    assert up == down, where
    if way.is_one_kind:
        up, down = way.defaults_of("t")
        assert up == down, where


def swept(way: Way, seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        found += tried(way, seed)
    assert found["followed"] > (3 if way.is_one_kind else 1) * found["refused"], found


@pytest.mark.main_case("mariadb-10.11_to_mariadb-10.11")
@pytest.mark.parametrize("pair", on(*_QUICK))
def test_ddl_in_random_sessions_gives_the_same_values(way: Way) -> None:
    swept(way, range(1, 5))


@pytest.mark.slow
@pytest.mark.parametrize("pair", on(*_OF_ONE_KIND, *_OF_TWO_KINDS))
def test_ddl_in_hundreds_of_sessions_gives_the_same_values(way: Way) -> None:
    swept(way, range(100, 200))


CASES = {
    "the time is the event's, in the session's zone": (
        ["SET time_zone = '+08:00', timestamp = 1500000000.25"],
        "ADD a DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,"
        " ADD b TIMESTAMP(2) NOT NULL DEFAULT CURRENT_TIMESTAMP(2)",
    ),
    "a literal is in the session's zone": (
        ["SET time_zone = '+08:00'"],
        "ADD a TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00'",
    ),
    "a DATETIME becomes a TIMESTAMP in the session's zone": (
        ["SET time_zone = '-03:30'"],
        "MODIFY dt TIMESTAMP(3) NULL",
    ),
    "a TIME becomes a DATETIME of the session's day": (
        ["SET time_zone = '+13:00', timestamp = 1500000000"],
        "MODIFY tm DATETIME",
    ),
    "zeros are numbered": (
        ["SET sql_mode = '', auto_increment_increment = 5, auto_increment_offset = 3"],
        "MODIFY k INT NOT NULL AUTO_INCREMENT, ADD KEY (k)",
    ),
    "zeros are kept": (
        ["SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'"],
        "MODIFY k INT NOT NULL AUTO_INCREMENT, ADD KEY (k)",
    ),
    "a lax session cuts": (["SET sql_mode = ''"], "MODIFY v VARCHAR(3), MODIFY n TINYINT NOT NULL"),
    "quotes and backslashes are the session's": (
        ["SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"],
        r"""ADD "a" VARCHAR(9) NOT NULL DEFAULT 'x\y'""",
    ),
}  # fmt: skip


OF_MODES = {
    "texts are not joined by ||": ("SET sql_mode = ''", "ADD a VARCHAR(20) AS (v || 'x') STORED"),
    "a space before a parenthesis": (
        "SET sql_mode = 'IGNORE_SPACE'",
        "ADD a VARCHAR(20) AS (CONCAT (v, 'x')) STORED",
    ),
    "REAL is a FLOAT": ("SET sql_mode = 'REAL_AS_FLOAT'", "ADD a REAL, ADD b REAL(6,2)"),
    "NOT binds first": (
        "SET sql_mode = 'HIGH_NOT_PRECEDENCE'",
        "ADD a INT AS (NOT n BETWEEN -10 AND 5) STORED",
    ),
    "a difference may be negative": (
        "SET sql_mode = 'NO_UNSIGNED_SUBTRACTION'",
        "ADD a BIGINT AS (CAST(k AS UNSIGNED) - 10) STORED",
    ),
    "fractions go the server's way": ("SET sql_mode = ''", "MODIFY dt DATETIME, MODIFY tm TIME"),
    "new columns without a default": (
        "SET sql_mode = 'STRICT_ALL_TABLES'",
        "ADD a DATE NOT NULL, ADD b INT NOT NULL",
    ),
    "months and days have names": (
        "SET lc_time_names = 'de_DE'",
        "ADD a VARCHAR(30) DEFAULT (DATE_FORMAT('2020-01-05', '%M %W'))",
    ),
}  # fmt: skip
REFUSED_OF_MODES = {
    "SET sql_mode = 'PIPES_AS_CONCAT'": "ADD a VARCHAR(20) AS (v || 'x') STORED",
    "SET sql_mode = 'ANSI'": "ADD a VARCHAR(20) AS (v || 'y') STORED",
}


@pytest.mark.slow
@pytest.mark.parametrize("pair", on(*_OF_ONE_KIND))
def test_what_a_mode_changes_is_changed_downstream_or_refused(way: Way) -> None:
    for name, (setting, parts) in OF_MODES.items():
        start(way)
        cursor = begin(way.upstream, [setting])
        cursor.execute(f"ALTER TABLE {UP}.t {parts}")
        cursor.connection.close()
        assert way.follow(), name
        check(way, name)
    for setting, parts in REFUSED_OF_MODES.items():
        start(way)
        cursor = begin(way.upstream, [setting])
        cursor.execute(f"ALTER TABLE {UP}.t {parts}")
        cursor.connection.close()
        with pytest.raises(NeedsOperator, match="another thing"):
            way.follow()


@pytest.mark.thorough
@pytest.mark.parametrize("pair", on(*_QUICK))
def test_what_a_session_changes_is_changed_downstream(way: Way) -> None:
    for name, (settings, parts) in CASES.items():
        start(way)
        cursor = begin(way.upstream, settings)
        cursor.execute(f"ALTER TABLE {UP}.t {parts}")
        cursor.connection.close()
        assert way.follow() == 1, name
        check(way, name)


@pytest.mark.slow
@pytest.mark.parametrize("pair", on((MARIADB, MARIADB), (MARIADB, MYSQL)))
def test_timestamps_that_must_not_be_null_any_more_get_the_moment_of_the_ddl(way: Way) -> None:
    start(way)
    cursor = begin(way.upstream, ["SET timestamp = 1500000000.25, time_zone = '+08:00'"])
    assert "STRICT" in way.upstream.query("SELECT @@sql_mode")[0][0]
    cursor.execute(f"ALTER TABLE {UP}.t MODIFY ts TIMESTAMP(2) NOT NULL, MODIFY n BIGINT")
    cursor.connection.close()
    assert way.follow() == 1
    check(way)
    assert way.rows("t")[1][1][2] == "2017-07-14 02:40:00.25"


INDEXES = (
    "CREATE TABLE {}.i (id INT PRIMARY KEY, a INT, KEY k (a), UNIQUE u (a) {hidden}, KEY v (a))",
    "ALTER TABLE {}.i ALTER INDEX k {hidden}, ADD b INT, ADD KEY b (b) {hidden}",
    "ALTER TABLE {}.i ALTER INDEX u {shown}",
    "CREATE INDEX w ON {}.i (b) COMMENT 'IGNORED' {hidden}",
)


@pytest.mark.parametrize("pair", on((MARIADB, MARIADB)))
def test_an_index_that_no_optimizer_may_use_is_so_downstream(way: Way) -> None:
    follow_indexes(way)


@pytest.mark.slow
@pytest.mark.parametrize("pair", on((MYSQL, MYSQL), *_OF_TWO_KINDS))
def test_an_index_is_hidden_in_the_words_of_the_server(way: Way) -> None:
    follow_indexes(way)


def follow_indexes(way: Way) -> None:
    words = ("IGNORED", "NOT IGNORED") if way.is_mariadb else ("INVISIBLE", "VISIBLE")
    way.upstream.run(f"DROP TABLE IF EXISTS {UP}.i")
    for sql in INDEXES:
        way.upstream.run(sql.format(UP, hidden=words[0], shown=words[1]))
    assert way.follow() >= len(INDEXES)
    (created,) = way.downstream.query(f"SHOW CREATE TABLE {DOWN}.i")
    lines = str(created[1]).splitlines()
    hidden = re.compile(r"IGNORED,?$|INVISIBLE \*/,?$")
    assert [re.findall("`(.)`", line)[0] for line in lines if hidden.search(line)] == [*"kbw"]


UNSAID = {
    "the digits of a division": (
        "SET div_precision_increment = 12",
        "ADD a DECIMAL(20,10) AS (n / 7) STORED",
    ),
    "those of a default, which older rows take": (
        "SET div_precision_increment = 12",
        "ADD a DECIMAL(20,10) NOT NULL DEFAULT (1 / 7)",
    ),
    "the number of a week": ("SET default_week_format = 3", "ADD a INT DEFAULT (WEEK(da))"),
}
"""Settings that no event says, and DDL that computes values by them."""
UNSAID_BY_A_MYSQL = {
    "a week is extracted": ("SET default_week_format = 3", "ADD a INT AS (EXTRACT(WEEK FROM da))"
                            " STORED"),
    "the mode in a definition": ("SET default_week_format = 3", "ADD a INT AS (WEEK(da)) VIRTUAL"),
    "the mode in an index": ("SET default_week_format = 3", "ADD INDEX i ((WEEK(da)))"),
}  # fmt: skip
UNSAID_BY_A_MARIADB = {
    "the date of a time": ("SET old_mode = 'ZERO_DATE_TIME_CAST', sql_mode = ''",
                           "MODIFY tm DATETIME"),
    "what utf8 is": ("SET old_mode = ''", "ADD a VARCHAR(9) CHARACTER SET utf8"),
}  # fmt: skip


@pytest.mark.parametrize("pair", on(*_OF_ONE_KIND))
def test_values_of_a_setting_that_no_event_says_are_followed_if_it_is_the_servers(way: Way) -> None:
    unsaid = UNSAID | (UNSAID_BY_A_MARIADB if way.is_mariadb else UNSAID_BY_A_MYSQL)
    start(way)
    cursor = begin(way.upstream)
    parts = (part.replace(" a ", f" a{n} ") for n, (_, part) in enumerate(unsaid.values()))
    cursor.execute(f"ALTER TABLE {UP}.t {', '.join(parts)}")
    assert way.follow()
    check(way)
    for n, (setting, part) in enumerate(unsaid.values()):
        cursor.execute(f"CREATE TABLE {UP}.u{n} (n INT, tm TIME, da DATE)")
        cursor.execute(f"INSERT INTO {UP}.u{n} VALUES (300, '10:11:12', '2020-02-29')")
        assert way.follow()
        cursor.execute(setting)
        cursor.execute(f"ALTER TABLE {UP}.u{n} {part}")
        with pytest.raises(NeedsOperator, match="a setting of its session"):
            way.follow()
    cursor.connection.close()


@pytest.mark.thorough
@pytest.mark.parametrize("pair", on((MYSQL, MARIADB)))
def test_what_the_two_kinds_of_servers_compute_in_different_ways_is_refused(way: Way) -> None:
    cursor = begin(way.upstream, ["SET sql_mode = ''"])
    for n, part in enumerate((
        "ADD a DECIMAL(20,10) AS (i / 7) STORED", "ADD a DECIMAL(20,10) DEFAULT (1 / 7)",
        "MODIFY dt BIGINT", "MODIFY dt DATE", "MODIFY i DATE",
        "ADD a DATE AS (dt + INTERVAL 1 MONTH) STORED",
    )):  # fmt: skip
        cursor.execute(f"CREATE TABLE {UP}.k{n} (i INT, dt DATETIME(3))")
        way.follow()
        cursor.execute(f"ALTER TABLE {UP}.k{n} {part}")
        with pytest.raises(NeedsOperator, match="in another way") as caught:
            way.follow()
        assert caught.value.code is Code.SINK_DDL_MOMENT
    cursor.connection.close()


@pytest.mark.parametrize("pair", on((MARIADB, MARIADB)))
def test_of_a_mariadb_a_check_over_rows_that_break_it_is_added(way: Way) -> None:
    start(way)
    cursor = begin(way.upstream, ["SET check_constraint_checks = 0"])
    cursor.execute(f"ALTER TABLE {UP}.t ADD CONSTRAINT positive CHECK (n > 0)")
    cursor.connection.close()
    assert way.follow() == 1
    assert "positive" in way.downstream.query(f"SHOW CREATE TABLE {DOWN}.t")[0][1]


@pytest.mark.thorough
@pytest.mark.parametrize("pair", on(*_QUICK))
def test_the_sessions_variables_are_what_they_were_before(way: Way) -> None:
    start(way)
    sql = (
        "SHOW SESSION VARIABLES WHERE Variable_name NOT IN ('timestamp', 'last_gtid', 'rand_seed1',"
        " 'rand_seed2', 'pseudo_thread_id', 'in_transaction', 'gtid_binlog_pos',"
        " 'gtid_binlog_state', 'gtid_current_pos', 'error_count', 'warning_count', 'identity',"
        " 'last_insert_id', 'insert_id', 'collation_database', 'character_set_database')"
    )
    before = way.downstream_session(sql)
    settings = [
        "SET time_zone = '+08:00', sql_mode = '', lc_time_names = 'de_DE'",
        "SET collation_connection = 'latin1_german1_ci', auto_increment_increment = 7",
    ]
    cursor = begin(way.upstream, settings)
    cursor.execute(f"ALTER TABLE {UP}.t MODIFY v VARCHAR(3)")
    assert way.follow() == 1
    assert way.downstream_session(sql) == before
    # It is in the way of the next one, which so fails in the middle.
    way.downstream.run(f"ALTER TABLE {DOWN}.t ADD a INT")
    cursor.execute(f"ALTER TABLE {UP}.t ADD a INT")
    cursor.connection.close()
    with pytest.raises(NeedsOperator, match="Duplicate column"):
        way.follow()
    assert way.downstream_session(sql) == before


@pytest.mark.parametrize("pair", on((MARIADB, MARIADB)))
def test_a_zone_that_the_downstream_lacks_is_refused_before_the_ddl_runs(way: Way) -> None:
    start(way)
    way.system_zone("Europe/Berlin")
    cursor = begin(way.upstream, ["SET time_zone = 'SYSTEM'"])
    cursor.execute(f"ALTER TABLE {UP}.t MODIFY dt TIMESTAMP NULL")
    cursor.connection.close()
    with pytest.raises(NeedsOperator, match="Europe/Berlin") as caught:
        way.follow()
    assert "time zone tables" in caught.value.hint
    assert "`dt` datetime(3)" in way.downstream.query(f"SHOW CREATE TABLE {DOWN}.t")[0][1]


@pytest.mark.thorough
@pytest.mark.mariadb
def test_timestamps_stay_null_on_a_server_without_explicit_defaults(
    mariadb_binlog: SqlServer,
) -> None:
    for option in ("&params=explicit_defaults_for_timestamp%3DOFF", ""):
        prepare(mariadb_binlog, mariadb_binlog)
        with closing(Way(mariadb_binlog, mariadb_binlog, option)) as way:
            mariadb_binlog.run(f"DROP TABLE IF EXISTS {UP}.t",
                               f"CREATE TABLE {UP}.t (id INT, a TIMESTAMP, b TIMESTAMP NULL,"
                               " c TIMESTAMP DEFAULT '2020-01-01 00:00:00')")  # fmt: skip
            way.follow()
            up, down = way.defaults_of("t")
            assert up == down
            mariadb_binlog.run(f"INSERT INTO {DOWN}.t VALUES (1, NULL, NULL, NULL)")
            assert mariadb_binlog.query(f"SELECT a, b, c FROM {DOWN}.t") == [(None, None, None)]
