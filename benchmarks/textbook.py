"""The pattern that every tutorial shows: a new thread runs `model.generate` for each request, beside a main thread that
has loaded the model and computed with it. The baseline of streaming_cost.

`python -m benchmarks.textbook FOLDER` streams one answer to the terminal.
"""

import argparse
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WARM_UP_TOKENS = 8


class Textbook:
    """A model in `folder`, loaded and warmed up in the calling thread, as an app does that loads at its start."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        inputs = self._tokenizer("warm up", return_tensors="pt")
        self._model.generate(**inputs, do_sample=False, max_new_tokens=WARM_UP_TOKENS)

    def stream(self, prompt: str, max_new_tokens: int) -> Iterator[str]:
        """The greedy answer, in the pieces that TextIteratorStreamer gives."""
        from transformers import TextIteratorStreamer

        inputs = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        streamer = TextIteratorStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        settings = {**inputs, "streamer": streamer, "do_sample": False, "max_new_tokens": max_new_tokens}
        thread = threading.Thread(target=self._model.generate, kwargs=settings)
        thread.start()
        yield from streamer
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", default="Write a long story about a dragon and a knight.")
    parser.add_argument("--new-tokens", type=int, default=64)
    options = parser.parse_args()
    for text in Textbook(options.folder).stream(options.prompt, options.new_tokens):
        print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
