"""An app in small, for tests that kill it: chats on a store, an engine that does not end, a file that says what
a viewer was given and when. `python -m tests.talker FOLDER JOURNAL`."""

import asyncio
import json
import sys
import time
from pathlib import Path

from streaming.chats import Chats
from streaming.conversation import Settings
from streaming.engines.script import Say, Think
from streaming.engines.scripted import ScriptedEngine
from streaming.messages import Sampling
from streaming.store import Store

OWNER = "ann"
PACE = 400  # tokens a second


async def talk(folder: Path, journal: Path) -> None:
    """A short answer, then endless ones, each in a new conversation. A line of the journal is a time, a conversation,
    and what a viewer has of its thought and its text by then."""
    engine = ScriptedEngine(
        lambda messages: [Think("Let me think of it. " * 20, PACE), Say("And so it goes on, and on. " * 10_000, PACE)],
        context_tokens=10_000_000,
    )
    chats = Chats(engine, Store(folder))
    with journal.open("a", encoding="utf-8") as file:
        for tokens in (150, 1_000_000):
            settings = Settings(sampling=Sampling(max_new_tokens=tokens))
            snapshot = await asyncio.to_thread(chats.send, OWNER, "", "Go on", settings)
            run = snapshot.run
            view = run.view() if run is not None else None
            while run is not None and view is not None and not view.ended:
                seen = (time.time(), snapshot.conversation_id, view.reasoning, view.text)
                file.write(f"{json.dumps(seen)}\n")
                file.flush()
                await run.changed(view.position)
                await asyncio.sleep(0.02)
                view = run.view()


if __name__ == "__main__":
    asyncio.run(talk(Path(sys.argv[1]), Path(sys.argv[2])))
