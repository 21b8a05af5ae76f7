"""axe-core looks at the page in each of its states: nothing serious or critical may stand in a reader's way."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.chat import DESKTOP, PHONE, Chat, tab, verbatim
from tests.browser.server import RunningApp

pytestmark = pytest.mark.browser

ARRIVED = """async () => {
    const endless = animation => animation.effect.getComputedTiming().endTime === Infinity;
    const frame = () => new Promise(shown => requestAnimationFrame(shown));
    do {
        await frame();
        await frame();
        await Promise.allSettled(document.getAnimations().filter(one => !endless(one)).map(one => one.finished));
    } while (!document.getAnimations().every(endless));
}"""
"""Returns when all that slides or fades is where it is going to be, however slow the machine is."""


def faults(chat: Chat, state: str) -> list[str]:
    """What axe finds, with the elements that it finds it in."""
    chat.page.evaluate(ARRIVED)  # half a colour has half its contrast
    violations = Axe().run(chat.page).response["violations"]
    return [
        f"{state}: {violation['id']} ({violation['impact']}): {node['html'][:200]} {node['failureSummary']}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_on_the_desktop(chromium: Browser, app: RunningApp, scheme: str) -> None:
    with tab(chromium, app.url, **DESKTOP, color_scheme=scheme) as chat:
        found = faults(chat, "empty")
        chat.ask("/think 0.3\n/pace 3000")
        chat.tool(chat.rows.last, "retry")
        chat.wait_idle()
        found += faults(chat, "at rest")
        chat.rows.last.locator(".tool-more").click()
        found += faults(chat, "menu")
        chat.page.keyboard.press("Escape")
        chat.page.locator("#side-search").fill("played")
        expect(chat.page.locator("#list mark").first).to_be_visible()
        found += faults(chat, "found")
        chat.ask("/fail after 3")
        chat.send("word " * 9_000)
        expect(chat.problem).to_be_visible()
        found += faults(chat, "refused")
        chat.box.fill("")
        chat.page.get_by_role("button", name="Settings", exact=True).click()
        found += faults(chat, "settings")
        chat.page.get_by_role("button", name="Close the settings").click()
        chat.box.press("Control+/")
        found += faults(chat, "help")
        assert found == []


def test_nothing_serious_on_a_phone_or_while_an_answer_streams(chromium: Browser, app: RunningApp) -> None:
    with tab(chromium, app.url, **PHONE) as chat:
        chat.ask(verbatim("- a\n- b"))
        chat.send("/say 400 tokens at 20 tok/s")
        chat.wait_phase("answering")
        found = faults(chat, "streaming")
        chat.page.get_by_role("button", name="Show the conversations").tap()
        found += faults(chat, "drawer")
        assert found == []
