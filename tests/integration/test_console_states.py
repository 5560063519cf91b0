"""The console in Chromium in each state of a cluster: no barrier, one red card, usable by keys."""

from collections.abc import Iterator

import pytest

from tests.kit.console_states import CALM, FAILURES
from tests.kit.servers.chromium import DESKTOP, PHONE, Chromium
from tests.kit.servers.console import StillConsole, barriers

TOKEN = "only-for-this-very-test"
STATES = {**CALM, **FAILURES}


@pytest.fixture(scope="module")
def console() -> Iterator[StillConsole]:
    with StillConsole(CALM["all is well"], TOKEN) as console:
        yield console


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, console: StillConsole) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        browser.open(f"{console.url}login")
        browser.ask(f"document.querySelector('#token').value = {TOKEN!r}")
        browser.click("form button")
        browser.until("document.querySelector('#actions')")
        yield browser
        assert browser.complaints() == []


def shows(browser: Chromium, console: StillConsole, name: str) -> None:
    console.scene.seen = STATES[name]
    browser.open(console.url)


def press(browser: Chromium, key: str, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text)


@pytest.mark.main_case("a dead Pump")
@pytest.mark.parametrize("name", STATES)
def test_in_each_state_the_page_has_no_barrier_and_a_red_card_for_each_failure(
    browser: Chromium, console: StillConsole, name: str
) -> None:
    for size, is_dark in ((DESKTOP, False), (PHONE, True)):
        browser.show(size, dark=is_dark)
        shows(browser, console, name)
        assert barriers(browser) == []
        assert browser.ask("document.documentElement.scrollWidth") <= size.width
        reds = browser.ask("document.querySelectorAll('.concern.act').length")
        assert reds == int(name in FAILURES)


def test_a_decision_is_reached_by_keys_alone(browser: Chromium, console: StillConsole) -> None:
    browser.show(DESKTOP)
    shows(browser, console, "a DDL that has stopped a Drainer")
    reached = []
    for _ in range(12):
        press(browser, "Tab")
        reached.append(browser.ask("document.activeElement.innerText"))
        if reached[-1] == "Do this here …":
            break
    assert reached[-2:] == ["Copy", "Do this here …"]
    assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    press(browser, "Enter", "\r")
    browser.until("document.body?.innerText.includes('This is what follows')")
    assert barriers(browser) == []


def test_a_button_copies_the_whole_command(browser: Chromium, console: StillConsole) -> None:
    allowed = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.call("Browser.grantPermissions", permissions=allowed)
    browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
    shows(browser, console, "a paused source")
    browser.click("button.copy")
    browser.until("document.querySelector('button.copy').textContent === 'Copied'")
    copied = browser.ask("navigator.clipboard.readText()")
    assert copied == "penstock source resume --status-addr=127.0.0.1:9251"


def test_what_has_the_focus_keeps_it_while_the_page_changes(
    browser: Chromium, console: StillConsole
) -> None:
    browser.show(DESKTOP)
    shows(browser, console, "a paused source")
    browser.ask("document.querySelector('button.copy').focus()")
    browser.ask("put('concerns', document.getElementById('concerns').innerHTML)")
    assert browser.ask("document.activeElement.className") == "copy"
