"""Exports and imports by hand: what is saved from the list's menus can be brought back."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import DESKTOP, tab
from tests.browser.server import RunningApp

pytestmark = pytest.mark.browser


def test_what_one_browser_exports_another_imports(chromium: Browser, app: RunningApp, tmp_path: Path) -> None:
    saved = tmp_path / "conversations.json"
    with tab(chromium, app.url) as chat:
        chat.start("flour and water", "and salt")
        chat.start("two days")
        chat.page.get_by_role("button", name="Import and export").click()
        with chat.page.expect_download() as download:
            chat.page.get_by_role("menuitem", name="Export everything").click()
        assert download.value.suggested_filename == "conversations.json"
        download.value.save_as(saved)
        chat.entry("flour").hover()
        chat.entry("flour").locator(".entry-more").click()
        with chat.page.expect_download() as download:
            chat.page.get_by_role("menuitem", name="Export as Markdown").click()
        markdown = Path(download.value.path()).read_text("utf-8")
        assert markdown.index("flour and water") < markdown.index("and salt")
    with tab(chromium, app.url) as other:
        other.page.get_by_role("button", name="Import and export").click()
        with other.page.expect_file_chooser() as chooser:
            other.page.get_by_role("menuitem", name="Import…").click()
        chooser.value.set_files(saved)
        expect(other.page.locator("#toast")).to_have_text("2 conversations imported")
        expect(other.titles).to_have_count(2)
        other.entry("flour").click()
        expect(other.rows).to_have_count(4)


def test_a_conversation_is_copied_as_markdown(chromium: Browser, app: RunningApp) -> None:
    context = chromium.new_context(**DESKTOP, permissions=["clipboard-read", "clipboard-write"])
    with tab(chromium, app.url, context) as chat:
        chat.start("flour and water")
        chat.entry_menu("flour", "Copy as Markdown")
        expect(chat.page.locator("#toast")).to_contain_text("Copied")
        assert "flour and water" in chat.page.evaluate("navigator.clipboard.readText()")
    context.close()
