"""The text of a PDF, read by pypdf in a child process that may use only so much time and memory, and then ends.

A PDF is a program of somebody else's: a few bytes of it can ask for gigabytes or hours, and what they take in this
process the model's answers would pay for. Knows no attachments. Blocks its caller: for worker threads.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from streaming.errors import InvalidRequest

MOST_PAGES = 300
CPU_SECONDS = 20
PATIENCE_S = 90  # by the clock: a busy machine gets its time
MEMORY_BYTES = 1_000_000_000
STREAM_BYTES = 20_000_000  # of one unpacked part of the file
_REASONS = {
    "encrypted": "is protected by a password. Save a copy without one",
    "damaged": "is damaged, or is not a PDF. Open it in a viewer and save it again",
    "pages": f"has more than {MOST_PAGES:,} pages. Take out those that matter",
    "costly": "takes too much time or memory to read. Open it in a viewer and print it into a new PDF",
    "images": "holds no text, only images, as scans do. Run it through a text recognition first",
}


def read_pdf(data: bytes, longest: int) -> tuple[str, int]:
    """The text of all pages, and how many there are. Reads on only until `longest` characters are exceeded.

    Raises InvalidRequest whose message goes on after the name of the file: "is damaged ...".
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STREAMING_")}  # no secrets
    try:
        done = subprocess.run(
            [sys.executable, "-m", "streaming.pdf", str(longest)],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the library's many remarks about the file
            env=environ,
            cwd=Path(__file__).parents[1],
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidRequest(_REASONS["costly"]) from error
    # What ends a child without an answer is a limit: its time (a signal), its memory, or a stack that ran over.
    answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"reason": "costly"}
    if reason := answer.get("reason"):
        raise InvalidRequest(_REASONS[reason])
    return answer["text"], answer["pages"]


def extract(data: bytes, longest: int) -> dict[str, Any]:
    """What the child answers: text and pages, or the reason why not."""
    import pypdf
    from pypdf.errors import DependencyError, LimitReachedError

    limits = pypdf.Configuration(
        zlib_maximum_output_length=STREAM_BYTES,
        lzw_maximum_output_length=STREAM_BYTES,
        run_length_maximum_output_length=STREAM_BYTES,
        array_based_stream_maximum_output_length=STREAM_BYTES,
    )
    try:
        with pypdf.apply_configuration(limits):
            reader = pypdf.PdfReader(BytesIO(data))
            if reader.is_encrypted and not reader.decrypt(""):
                return {"reason": "encrypted"}
            pages = reader.get_num_pages()
            if pages > MOST_PAGES:
                return {"reason": "pages"}
            text = "\n\n".join(_until(longest, (page.extract_text().strip() for page in reader.pages)))
    except DependencyError:  # a cipher that takes a further library; or a compression that hardly anybody uses
        return {"reason": "encrypted" if b"/Encrypt" in data else "damaged"}
    except (LimitReachedError, MemoryError, RecursionError):
        return {"reason": "costly"}
    except Exception:  # "broken PDF files might cause other exceptions", says the library
        return {"reason": "damaged"}
    if not pages:
        return {"reason": "damaged"}
    return {"text": _clean(text), "pages": pages} if text.strip() else {"reason": "images"}


def _until(longest: int, texts: Iterator[str]) -> Iterator[str]:
    """Texts until they are longer than `longest` together."""
    total = 0
    for text in texts:
        yield text
        total += len(text)
        if total > longest:
            return


def _clean(text: str) -> str:
    """Without what fonts leave behind: control characters, and pairs of half characters."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "".join(character for character in whole if character in "\t\n" or character >= " ").strip()


def _limit_this_process() -> None:
    if sys.platform == "win32":
        return  # there the caller's patience is the limit
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the kernel refuses or ignores it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    _limit_this_process()
    print(json.dumps(extract(sys.stdin.buffer.read(), int(sys.argv[1]))))
