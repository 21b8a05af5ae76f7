"""The chat page of the tutorials, page_cost's peer: one Chatbot, and every update sends the whole history again."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr


def build(
    history: list[dict[str, Any]], words: list[str], rate: float, update_s: float, on_end: Callable[[float], None]
) -> gr.Blocks:
    """A page on `history` that answers with `words`, `rate` of them a second, updating every `update_s`.

    `on_end` gets the time.time() at which a model of that rate would have ended.
    """

    def answer(text: str) -> Iterator[list[dict[str, Any]]]:
        messages = [*history, {"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        started, shown = time.time(), 0
        on_end(started + len(words) / rate)
        while shown < len(words):
            shown = min(len(words), int((time.time() - started) * rate) + 1)
            messages[-1] = {"role": "assistant", "content": "".join(words[:shown])}
            yield messages
            time.sleep(update_s)

    page = gr.Blocks(analytics_enabled=False)
    with page:
        chatbot = gr.Chatbot(history, elem_id="history", height="auto")  # type: ignore[arg-type]
        box = gr.Textbox(elem_id="composer")
        box.submit(answer, box, chatbot)
    return page
