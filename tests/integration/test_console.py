"""The console of a real cluster in a real Chromium: what an operator sees, and what they can do."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from drainer.spark.jvm import use_java
from penstock.ctl.console.children import DECISION_S_MAX
from penstock.local.cluster import Cluster
from pumpclient import PumpClient
from tests.kit.servers.chromium import DESKTOP, PHONE, SIZES, Chromium, Size
from tests.kit.servers.console import ConsoleProcess, barriers

pytestmark = [pytest.mark.etcd, pytest.mark.spark]

TOKEN = "only-for-this-very-test"
HOSTILE = '<img src=x onerror="hacked=1">'
SEEN_S = 20.0
STARTED_S = 60.0


class Shop:
    """A cluster of two Pumps and a Drainer into SQLite, and a program that writes."""

    def __init__(self, home: Path, cluster: Cluster, client: PumpClient) -> None:
        self.home, self.cluster, self.client = home, cluster, client
        self._ids = count()
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.orders (id INT PRIMARY KEY, what TEXT)")

    def sell(self, transactions: int = 20) -> None:
        for _ in range(transactions):
            with self.client.begin("shop") as txn:
                txn.insert("orders", {"id": next(self._ids), "what": "a bolt"})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    home = tmp_path_factory.mktemp("shop")
    use_java(home / "java")
    with Cluster(home, pumps=2) as cluster, PumpClient.connect(cluster.etcd.url) as client:
        yield Shop(home, cluster, client)


@pytest.fixture(scope="module")
def console(shop: Shop) -> Iterator[ConsoleProcess]:
    token = shop.home / "token"
    token.write_text(f"{TOKEN}\n")
    console = ConsoleProcess(shop.home, shop.cluster.etcd.url, "--token-file", str(token)).start()
    yield console
    assert console.stop() == 0


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture
def browser(chromium: Chromium, console: ConsoleProcess) -> Iterator[Chromium]:
    """Return a browser that shows the page; at the end nothing may have gone wrong in it."""
    chromium.events.clear()
    chromium.call("Network.clearBrowserCookies")
    chromium.show(DESKTOP)
    chromium.open(console.url)
    sees(chromium, "live")
    yield chromium
    assert chromium.complaints() == []
    assert {url for url in chromium.asked_for() if not url.startswith(console.url)} == set()


def sees(browser: Chromium, words: str, within_s: float = SEEN_S) -> None:
    """Return once the page says so."""
    browser.until(f"document.body?.innerText.includes({words!r})", within_s)


def causes(browser: Chromium) -> list[str]:
    """Return the titles of the cards that need a person."""
    titles = "[...document.querySelectorAll('.concern.act h2')].map((e) => e.innerText)"
    return list(browser.ask(titles))


@contextmanager
def without_reloading(browser: Chromium) -> Iterator[None]:
    loaded = browser.ask("performance.timeOrigin")
    yield
    assert browser.ask("performance.timeOrigin") == loaded


def log_in(browser: Chromium, console: ConsoleProcess) -> None:
    browser.open(f"{console.url}login")
    browser.ask(f"document.querySelector('#token').value = {TOKEN!r}")
    browser.click("form button")
    sees(browser, "Actions")


def test_the_stream_is_shown_from_writers_to_downstream_and_moves_without_reloading(
    shop: Shop, browser: Chromium
) -> None:
    with without_reloading(browser):
        for words in ("1 program", "pump-1", "pump-2", "drainer-1", "downstream.db", "All is well"):
            sees(browser, words)
        assert browser.ask("document.querySelectorAll('.plot').length") >= 4
        for _ in range(3):
            before = browser.ask("document.querySelector('#plots').innerHTML")
            shop.sell()
            browser.until(f"document.querySelector('#plots').innerHTML !== {before!r}", SEEN_S)
    assert browser.ask("document.querySelectorAll('.pipe.flowing').length") > 0


@pytest.mark.thorough
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_the_page_has_no_barriers_on_any_screen_light_or_dark(
    browser: Chromium, size: Size, is_dark: bool
) -> None:
    browser.show(size, dark=is_dark)
    assert barriers(browser) == []
    assert browser.ask("document.documentElement.scrollWidth") <= size.width
    assert browser.ask("getComputedStyle(document.querySelector('.pipes .wide')).display") == (
        "block" if size is DESKTOP else "none"
    )


@pytest.mark.thorough
def test_a_pump_that_was_killed_is_said_to_hold_the_merge_while_others_are_shown_live(
    shop: Shop, browser: Chromium
) -> None:
    victim = shop.cluster.pumps["pump-2"]
    with without_reloading(browser):
        victim.kill()
        try:
            sees(browser, "No answer for")
            browser.until("document.querySelector('#stream .card.fine .name')")
            sees(browser, "Pump pump-2 is dead")
            sees(browser, "The merge of drainer-1 has been blocked")
            assert causes(browser) == ["Pump pump-2 is dead"]
            assert "UNAVAILABLE" not in browser.text()
            sees(browser, "blocks the merge")
        finally:
            victim.start()
        sees(browser, "All is well", STARTED_S)


@pytest.mark.thorough
def test_a_ddl_that_stops_the_drainer_is_decided_on_the_page(
    shop: Shop, console: ConsoleProcess, browser: Chromium
) -> None:
    columns = "(id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2"
    shop.client.execute_ddl(f"CREATE TABLE shop.`{HOSTILE}` {columns}")
    (ts,) = shop.client.execute_ddl(f"ALTER TABLE shop.`{HOSTILE}` TRUNCATE PARTITION p0")
    with without_reloading(browser):
        sees(browser, "Drainer drainer-1 has stopped and waits for a decision", STARTED_S)
        sees(browser, f"penstock drainer ddl skip {ts}")
        sees(browser, HOSTILE)
        assert browser.ask("typeof hacked") == "undefined"
        assert browser.ask("document.querySelectorAll('.choices li').length") == 4
        browser.show(PHONE)
        assert barriers(browser) == []
        assert browser.ask("document.documentElement.scrollWidth") <= PHONE.width
    browser.show(DESKTOP)
    log_in(browser, console)
    browser.click("a[href='/decide/drainer%20drainer-1/3']")
    sees(browser, "This command is run here")
    sees(browser, f"penstock drainer ddl skip {ts}")
    assert barriers(browser) == []
    browser.click("button.danger")
    sees(browser, "Decided", DECISION_S_MAX)
    sees(browser, "changed in the checkpoint of sqlite")
    shop.cluster.drainer.wait()
    shop.cluster.drainer.start()
    sees(browser, "All is well", STARTED_S)
    sees(browser, "1 ddls")


@pytest.mark.thorough
def test_who_has_the_token_sees_the_last_changes_of_a_table(
    shop: Shop, console: ConsoleProcess, browser: Chromium
) -> None:
    shop.sell()
    with shop.client.begin("shop") as txn:
        txn.insert("orders", {"id": 10**6, "what": HOSTILE * 20})
    with shop.client.begin("shop") as txn:
        txn.update("orders", {"id": 10**6, "what": HOSTILE * 20}, {"what": "new"})
    log_in(browser, console)
    sees(browser, "shop.orders")
    browser.click("a[href='/changes?table=shop.orders']")
    sees(browser, "Last changes")
    browser.until("document.querySelectorAll('tr.update ins').length === 1")
    assert browser.ask("document.querySelectorAll('tr.insert').length") >= 20
    sees(browser, HOSTILE)
    sees(browser, "characters)")
    assert browser.ask("typeof hacked") == "undefined"
    for size in (DESKTOP, PHONE):
        browser.show(size)
        assert barriers(browser) == []
        assert browser.ask("document.documentElement.scrollWidth") <= size.width
    browser.open(f"{console.url}changes?table=nonsense")
    sees(browser, "no table")
    assert barriers(browser) == []


@pytest.mark.thorough
def test_who_has_the_token_pauses_a_pump_having_read_what_follows(
    shop: Shop, console: ConsoleProcess, browser: Chromium
) -> None:
    assert "pause-pump" not in browser.text()
    log_in(browser, console)
    assert barriers(browser) == []
    browser.click('a[href="do/pause-pump/pump-1"]')
    sees(browser, "This is what follows")
    sees(browser, "Every Drainer waits for it")
    assert barriers(browser) == []
    try:
        browser.click("button.danger")
        sees(browser, "pause-pump pump-1: pausing")
        assert shop.cluster.pumps["pump-1"].wait() == 0
        sees(browser, "Pump pump-1 is paused", STARTED_S)
    finally:
        shop.cluster.pumps["pump-1"].stop()
        shop.cluster.pumps["pump-1"].start()
    sees(browser, "All is well", STARTED_S)
    browser.click("footer button")
    sees(browser, "Log in to act")


def test_without_a_script_the_page_is_whole_and_loads_itself_again(
    browser: Chromium, console: ConsoleProcess
) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(console.url)
        assert browser.ask("document.querySelectorAll('#stream article').length") == 6
        assert browser.ask("document.querySelector('noscript meta').content") == "5"
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
