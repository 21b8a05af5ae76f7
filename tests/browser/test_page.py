"""What the page must survive and show: a real browser, the scripted engine. Each test tells where it went wrong."""

import re
import socket
import time

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import PHONE, Chat, say_in_both, tab, verbatim
from tests.browser.conftest import ServeApp
from tests.browser.server import RunningApp

pytestmark = pytest.mark.browser

NUMBERED = re.compile(r"\d+")


def test_an_answer_streams_and_ends_in_the_history(chat: Chat) -> None:
    chat.send("/say 30 tokens at 20 tok/s")
    chat.wait_live(re.compile(r"\w"))
    assert chat.rows.count() == 0
    chat.wait_idle()
    expect(chat.rows).to_have_count(2)
    expect(chat.page.locator("#history .figures")).to_contain_text(re.compile(r"tok/s · first token .* s · 30 tokens"))
    expect(chat.page.locator("#status")).to_contain_text("of 8,192 tokens")


def test_a_long_fast_answer_under_a_long_history_is_whole(chat: Chat) -> None:
    """Reported of Gradio (4092, 6847) and textgen (4429): the page falls behind a fast model under a long history.
    How far behind is measured by benchmarks/page_cost.py; here nothing may be missing at the end."""
    for _ in range(10):
        chat.ask("/say 40 tokens at 2000 tok/s")
    chat.ask("/say 600 tokens at 200 tok/s")
    expect(chat.page.locator("#history .figures").last).to_contain_text("600 tokens")
    assert len(chat.texts()) == 22


@pytest.mark.parametrize(
    ("markdown", "selector", "text"),
    [
        ("- a\n    - b\n    - c", "ul ul li", "b"),
        ("```python\n    first = 1\nsecond = 2\n```", "pre code", "    first = 1\nsecond = 2"),
        ("    indented\n", "pre code", "indented"),
    ],
)
def test_indentation_is_kept(chat: Chat, markdown: str, selector: str, text: str) -> None:
    """Reported of Gradio (9717): leading indent was stripped, nested lists went flat and code lost its first indent."""
    chat.ask(verbatim(markdown))
    shown = chat.rows.last.locator(selector).first
    expect(shown).to_be_visible()
    assert (shown.text_content() or "").rstrip() == text


def test_indentation_is_kept_while_streaming(chat: Chat) -> None:
    chat.send(verbatim("- a\n    - b\n    - c\n\n" + "more words " * 20, 20))
    expect(chat.live.last.locator("ul ul li").first).to_have_text("b")
    chat.stop()
    chat.wait_idle()


@pytest.mark.parametrize("formula", ["$$\nx^2 + y^2\n$$", "$x^2$", "\\(x^2\\)", "\\[\nx^2\n\\]"])
def test_latex_is_rendered(chat: Chat, formula: str) -> None:
    """Reported of Gradio (5355, 7146): a newline after the dollar signs left the formula raw."""
    chat.ask(verbatim(f"Before {formula} after, which costs $5 and $6."))
    expect(chat.rows.last.locator(".katex").first).to_be_visible()
    expect(chat.rows.last).to_contain_text("costs $5 and $6.")
    assert chat.rows.last.locator(".katex").count() == 1


def test_latex_stays_rendered_while_more_text_comes(chat: Chat) -> None:
    """No flicker: once a formula was shown, no later frame shows its source again."""
    chat.page.evaluate("""() => {
        window.seen = []; window.rendered = false;
        const look = () => {
            const answer = [...document.querySelectorAll('#live .bot-row .md')].at(-1);
            if (answer) {
                const formula = answer.querySelector('.katex');
                if (formula) window.rendered = true;
                const words = [...answer.childNodes].map(n => n.cloneNode(true));
                const copy = document.createElement('div'); copy.append(...words);
                copy.querySelectorAll('.katex').forEach(n => n.remove());
                if (window.rendered && /\\$\\$|x\\^2/.test(copy.textContent)) window.seen.push(copy.textContent);
            }
            requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
    }""")
    chat.ask(verbatim("A formula:\n\n$$\nx^2\n$$\n\n" + "and many more words " * 15, 30))
    assert chat.page.evaluate("window.rendered")
    assert chat.page.evaluate("window.seen") == []


def test_tags_in_prose_are_visible(chat: Chat) -> None:
    """Reported of Gradio (10709, 10769): unknown tags vanished from the answer."""
    chat.ask(verbatim("Write <test>, <think> and `<think>` like this."))
    expect(chat.rows.last).to_contain_text("Write <test>, <think> and <think> like this.")


def test_html_from_the_model_is_inert(chat: Chat) -> None:
    """Reported of FastChat (88) and Gradio (11168): the model's HTML ran. And a Markdown image, which is no HTML, must
    not carry the chat to somebody's server in its address."""
    with socket.create_server(("127.0.0.1", 0)) as attacker:
        attacker.settimeout(0.5)
        address = f"http://127.0.0.1:{attacker.getsockname()[1]}"
        chat.ask(
            verbatim(
                "<script>document.title = 'owned'</script>\n"
                "<img src=x onerror=\"document.title = 'owned'\">\n"
                "<style>body { display: none }</style>\n"
                "<div style='position: fixed; inset: 0; background: red; z-index: 9999'>cover</div>\n"
                f"<form action='{address}'><button>press</button></form>\n"
                f"[link](javascript:document.title='owned') ![image]({address}/?q=secret)\n\n"
                "- <iframe src='javascript:parent.document.title=1'></iframe>\n"
            )
        )
        answer = chat.rows.last.locator(".md")
        expect(answer).to_contain_text("<script>")
        answer.get_by_text("link", exact=True).click()
        assert chat.page.title() not in ("owned", "1")
        assert answer.locator("script, style, iframe, form, div[style*=fixed]").count() == 0
        expect(chat.box).to_be_visible()
        with pytest.raises(TimeoutError):
            attacker.accept()


def test_a_page_of_one_s_own_is_not_shown_within_another_site(chat: Chat, app: RunningApp) -> None:
    """Or a stranger could lay it unseen under buttons of theirs."""
    policy = chat.page.request.get(app.url).headers["content-security-policy"]
    assert "frame-ancestors 'self'" in policy


def test_html_from_the_user_is_inert_and_visible(chat: Chat) -> None:
    chat.ask("<img src=x onerror=\"document.title='owned'\"> hello")
    expect(chat.rows.first).to_contain_text("<img src=x")
    assert chat.page.title() != "owned"


def test_the_reader_is_not_moved_while_reading_above(chat: Chat) -> None:
    """Reported of Gradio (5785): scrolling up while text streamed threw the reader back down."""
    for _ in range(3):
        chat.ask("/say 300 tokens at 3000 tok/s")
    chat.send("/say 1000 tokens at 40 tok/s")
    chat.wait_phase("answering")
    bottom = "() => document.scrollingElement.scrollHeight - document.scrollingElement.scrollTop - innerHeight"
    assert chat.page.evaluate(bottom) < 80
    chat.page.mouse.move(700, 400)
    chat.page.mouse.wheel(0, -600)
    expect(chat.page.locator("#to-end")).to_be_visible()
    place = chat.page.evaluate("document.scrollingElement.scrollTop")
    height = chat.page.evaluate("document.scrollingElement.scrollHeight")
    chat.page.wait_for_function("height => document.scrollingElement.scrollHeight > height + 60", arg=height)
    assert chat.page.evaluate("document.scrollingElement.scrollTop") == place
    chat.page.locator("#to-end").click()
    expect(chat.page.locator("#to-end")).not_to_be_visible()
    chat.page.wait_for_function(f"({bottom})() < 80")
    height = chat.page.evaluate("document.scrollingElement.scrollHeight")
    chat.page.wait_for_function("height => document.scrollingElement.scrollHeight > height + 60", arg=height)
    assert chat.page.evaluate(bottom) < 80
    chat.stop()
    chat.wait_idle()


def test_a_reload_in_the_middle_of_an_answer_goes_on(chat: Chat) -> None:
    """Reported of Gradio (3106) and textgen (5136): a reload lost the answer, or the whole chat."""
    chat.ask("/say 5 tokens at 100 tok/s")
    chat.send("/say 120 tokens at 30 tok/s")
    chat.wait_phase("answering")
    before = chat.raw()[-1]
    chat.reload()
    chat.wait_phase("answering", "idle")
    chat.wait_idle()
    expect(chat.rows).to_have_count(4)
    after = chat.texts()[-1]
    assert after.startswith(before[:20])
    expect(chat.page.locator("#history .figures").last).to_contain_text("120 tokens")


def test_two_tabs_on_one_conversation_do_not_overwrite_each_other(chromium: Browser, app: RunningApp) -> None:
    context = chromium.new_context()
    with tab(chromium, app.url, context) as one:
        one.ask(verbatim("first"))
        with tab(chromium, app.url, context) as two:
            expect(two.rows).to_have_count(2)
            say_in_both(one, two)
            two.reload()
            two.send("/say 60 tokens at 30 tok/s")
            two.wait_phase("answering")
            one.send("too early")
            expect(one.problem).to_contain_text("still being written")
            expect(one.box).to_have_value("too early")
            two.wait_idle()
            one.wait_idle()
            assert one.texts() == two.texts()
    context.close()


def test_two_browsers_do_not_see_each_other(chromium: Browser, app: RunningApp) -> None:
    """Reported of textgen (2950) and Gradio (4558): one visitor's chat appeared in another's browser."""
    with tab(chromium, app.url) as ann, tab(chromium, app.url) as bob:
        ann.ask(verbatim("Ann's riddle"))
        bob.reload()
        expect(bob.page.locator("#greeting")).to_be_visible()
        assert bob.rows.count() == 0
        assert "riddle" not in bob.page.content()


def test_a_stop_in_one_browser_leaves_the_other_alone(chromium: Browser, app: RunningApp) -> None:
    with tab(chromium, app.url) as ann, tab(chromium, app.url) as bob:
        ann.send("/say 400 tokens at 40 tok/s")
        ann.wait_phase("answering")
        bob.send("/say 30 tokens at 60 tok/s")
        bob.wait_phase("queued")
        expect(bob.page.locator("#status")).to_contain_text("waiting")
        ann.stop()
        ann.wait_idle()
        expect(ann.notes).to_have_text(["Stopped"])
        bob.wait_idle()
        expect(bob.page.locator("#history .figures")).to_contain_text("30 tokens")


def test_an_example_is_sent_and_can_be_stopped(chat: Chat) -> None:
    """Reported of Gradio (10912): an answer to an example could not be stopped."""
    chat.page.locator(".example").first.click()
    chat.wait_phase("answering")
    chat.stop()
    chat.wait_idle()
    expect(chat.rows).to_have_count(2)
    expect(chat.notes).to_have_text(["Stopped"])


def test_on_a_phone_send_becomes_stop_and_back(chromium: Browser, app: RunningApp) -> None:
    with tab(chromium, app.url, **PHONE) as chat:
        send, stop = chat.page.locator("#send"), chat.page.locator("#stop")
        expect(send).to_be_visible()
        expect(stop).not_to_be_visible()
        chat.box.fill("/say 200 tokens at 30 tok/s")
        send.tap()
        expect(stop).to_be_visible()
        expect(send).not_to_be_visible()
        stop.tap()
        chat.wait_idle()
        expect(send).to_be_visible()
        width = chat.page.evaluate("document.scrollingElement.scrollWidth")
        assert width <= 390


def test_a_screen_reader_hears_the_answer_once(chat: Chat) -> None:
    """Reported of textgen (7479) and Gradio (8615): each token was read out, or nothing was."""
    chat.page.evaluate("""() => {
        window.heard = [];
        new MutationObserver(() => {
            const text = document.querySelector('#announcer').textContent;
            if (text) window.heard.push(text);
        }).observe(document.querySelector('#announcer'), {childList: true, characterData: true, subtree: true});
    }""")
    chat.ask(verbatim("one two three four five", 20))
    expect(chat.page.locator("#announcer")).to_have_text("one two three four five")
    assert chat.page.evaluate("window.heard") == ["one two three four five"]
    assert chat.page.locator("#history [role=log]").get_attribute("aria-live") == "off"
    for name in ("New chat", "Help and keys", "Light or dark", "Settings"):
        expect(chat.page.get_by_role("button", name=name, exact=True).first).to_be_attached()
    expect(chat.page.get_by_role("textbox", name="Message", exact=True)).to_be_visible()


def test_edit_retry_and_undo_change_exactly_the_named_message(chat: Chat) -> None:
    """Reported of Gradio (10320, 10823): the wrong message changed, or one was doubled."""
    chat.ask(verbatim("first"))
    slow = " ".join(f"second{n}" for n in range(20))
    chat.ask(verbatim(slow, 20))
    chat.tool(chat.rows.last, "retry")
    chat.wait_phase("answering")
    chat.wait_idle()
    assert chat.texts()[1::2] == ["first", slow]
    chat.tool(chat.rows.last, "undo")
    expect(chat.rows).to_have_count(2)
    expect(chat.box).to_have_value(verbatim(slow, 20))
    chat.box.fill("")
    chat.ask(verbatim("third"))
    chat.tool(chat.rows.first, "edit")
    form = chat.page.locator(".edit-form textarea")
    expect(form).to_have_value(verbatim("first"))
    form.fill(verbatim("changed"))
    form.press("Enter")
    expect(chat.rows).to_have_count(2)
    expect(chat.rows.last).to_contain_text("changed")
    assert chat.texts()[1] == "changed"


@pytest.mark.parametrize("text", ["", "   ", "\n\n"])
def test_an_empty_box_sends_nothing(chat: Chat, text: str) -> None:
    """Reported of FastChat (3096): an empty message was an error."""
    chat.box.fill(text)
    chat.box.press("Enter")
    chat.page.locator("#send").click()
    chat.ask(verbatim("still works"))
    expect(chat.rows).to_have_count(2)
    assert chat.problem.count() == 0


def test_a_long_paste_stays_text(chat: Chat) -> None:
    text = "word " * 4_000
    chat.page.evaluate("text => navigator.clipboard?.writeText(text).catch(() => {})", text)
    chat.box.focus()
    chat.page.evaluate(
        """text => {
            const data = new DataTransfer(); data.setData('text/plain', text);
            const box = document.querySelector('#composer textarea');
            if (box.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true})))
                document.execCommand('insertText', false, text);
        }""",
        text,
    )
    expect(chat.box).to_have_value(text)
    assert chat.page.locator("#dock .chip, #dock .file").count() == 0, "it became a file"


def test_a_refused_text_stays_in_the_box(chat: Chat) -> None:
    chat.ask(verbatim("before"))
    text = "word " * 9_000
    chat.send(text)
    expect(chat.problem).to_contain_text("too long")
    expect(chat.problem).to_contain_text("8,192")
    expect(chat.box).to_have_value(text)
    chat.box.fill("")
    chat.ask(verbatim("after"))
    assert chat.problem.count() == 0
    assert chat.texts()[1::2] == ["before", "after"]


def test_an_error_is_shown_where_the_reader_looks_and_the_text_stays(chat: Chat) -> None:
    chat.ask("/fail after 3")
    expect(chat.page.locator("#history .turn-note.failed")).to_be_visible()
    assert len(chat.texts()[1].split()) == 3
    chat.ask(verbatim("next"))
    assert chat.texts()[-1] == "next"


def test_thinking_is_shown_folded_with_its_duration(chat: Chat) -> None:
    chat.send("/think 1s\n/say 20 tokens at 20 tok/s")
    expect(chat.page.locator("#live .thought-group")).to_contain_text(re.compile(r"Thinking… \d"))
    chat.wait_phase("answering")
    expect(chat.page.locator("#live .thought-group")).to_contain_text(re.compile(r"Thought for \d+\.\d s"))
    expect(chat.page.locator("#live .thought-group .content")).to_have_count(0)
    chat.wait_idle()
    expect(chat.page.locator("#history .thought-group")).to_contain_text(re.compile(r"Thought for \d+\.\d s"))
    chat.page.locator("#history .thought-group .title").click()
    expect(chat.page.locator("#history .thought-group .content")).to_be_visible()


def test_a_stop_while_thinking_keeps_the_thought(chat: Chat) -> None:
    chat.send("/think 20s")
    expect(chat.page.locator("#live .thought-group .content")).to_contain_text(re.compile(r"\w"))
    chat.stop()
    chat.wait_idle()
    expect(chat.page.locator("#history .thought-group")).to_be_visible()
    expect(chat.notes).to_have_text(["Stopped"])


def test_keys(chat: Chat) -> None:
    chat.box.fill("one")
    chat.box.press("Shift+Enter")
    chat.box.press_sequentially("two")
    expect(chat.box).to_have_value("one\ntwo")
    chat.box.fill("/say 400 tokens at 40 tok/s")
    chat.box.press("Enter")
    chat.wait_phase("answering")
    chat.box.fill("the next one")
    chat.box.press("Enter")
    expect(chat.box).to_have_value("the next one")
    chat.box.press("Escape")
    chat.wait_idle()
    expect(chat.notes).to_have_text(["Stopped"])
    chat.box.fill("")
    chat.box.press("ArrowUp")
    expect(chat.page.locator(".edit-form textarea")).to_have_value("/say 400 tokens at 40 tok/s")
    chat.page.keyboard.press("Escape")
    expect(chat.page.locator(".edit-form")).to_have_count(0)
    chat.box.press("Control+/")
    expect(chat.page.locator("#help-dialog")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(chat.page.locator("#help-dialog")).not_to_be_visible()
    chat.box.press("Control+Shift+O")
    expect(chat.page.locator("#greeting")).to_be_visible()


def test_ten_quick_stops_and_then_a_message_give_one_whole_answer(chat: Chat) -> None:
    """Reported of Gradio (13044)."""
    chat.send("/say 400 tokens at 40 tok/s")
    chat.wait_phase("answering")
    chat.page.evaluate("() => { for (let i = 0; i < 10; i++) document.querySelector('#stop').click(); }")
    chat.wait_idle()
    chat.ask(verbatim("one whole answer"))
    assert chat.texts()[-1] == "one whole answer"
    assert len(chat.texts()) == 4


def test_a_new_chat_leaves_the_old_answer_to_itself(chat: Chat) -> None:
    chat.send("/say 300 tokens at 60 tok/s")
    chat.wait_phase("answering")
    chat.new()
    chat.ask(verbatim("fresh"))
    assert chat.texts()[1] == "fresh"
    assert len(chat.texts()) == 2


def test_a_wrong_setting_is_named_and_a_right_one_is_used(chat: Chat) -> None:
    chat.page.get_by_role("button", name="Settings", exact=True).click()
    field = chat.page.locator("#max-new-tokens textarea, #max-new-tokens input")
    field.fill("many")
    chat.send("/say 50 tokens at 500 tok/s")
    expect(chat.problem).to_contain_text("Max new tokens is 'many'")
    expect(chat.box).to_have_value("/say 50 tokens at 500 tok/s")
    field.fill("7")
    chat.box.press("Enter")
    expect(chat.notes).to_have_text(["Cut off at the token limit"])
    expect(chat.page.locator("#history .figures")).to_contain_text("7 tokens")
    chat.reload()
    expect(field).to_have_value("7")


def test_a_preset_of_ones_own_survives_a_reload(chat: Chat) -> None:
    chat.page.get_by_role("button", name="Settings", exact=True).click()
    temperature = chat.page.locator("#temperature textarea, #temperature input")
    temperature.fill("0.3")
    chat.page.locator("#own-presets button").first.click()
    chat.page.locator("#preset-name textarea, #preset-name input").fill("Mine")
    chat.page.locator("#preset-save").click()
    expect(chat.page.locator("#preset input")).to_have_value("Mine")
    chat.reload()
    chat.page.get_by_role("button", name="Settings", exact=True).click()
    chat.page.locator("#preset input").click()
    chat.page.get_by_role("option", name="Mine").click()
    expect(temperature).to_have_value("0.3")


def test_dark_and_light(chat: Chat) -> None:
    dark = "document.body.classList.contains('dark')"
    before = chat.page.evaluate(dark)
    chat.page.get_by_role("button", name="Light or dark").click()
    assert chat.page.evaluate(dark) is not before
    chat.reload()
    assert chat.page.evaluate(dark) is not before


def test_health_and_the_page_are_on_one_server(chat: Chat, app: RunningApp) -> None:
    health = chat.page.request.get(f"{app.url}/health")
    assert health.status == 200
    assert health.json()["status"] == "ok"


def test_share_without_a_network_says_so_and_the_local_page_works(chromium: Browser, serve_app: ServeApp) -> None:
    """Reported of Gradio (3677, 4548): no link and no reason."""
    app = serve_app(share=True, public=True)
    deadline = time.monotonic() + 90  # Gradio tries its share service first, and that takes as long as it takes
    while "There is no public link" not in app.output():
        assert time.monotonic() < deadline, app.output()
        time.sleep(0.2)
    with tab(chromium, app.url) as chat:
        chat.ask(verbatim("local"))
        assert chat.texts()[1] == "local"
