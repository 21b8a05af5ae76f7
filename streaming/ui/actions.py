"""What the page's script may ask for, by name, as calls of Chats. Some start an answer, and so need today's settings.

Knows nothing of components. Each call runs on a worker thread and returns the conversation as it then stands.
"""

from collections.abc import Callable

from streaming.chats import Chats, Snapshot
from streaming.conversation import Settings
from streaming.ui.visitors import Action, Visitor

Answer = Callable[[Chats, Visitor, Action, Settings], Snapshot]
Change = Callable[[Chats, Visitor, Action], Snapshot]

ANSWERS: dict[str, Answer] = {
    "send": lambda chats, who, asked, chosen: chats.send(
        who.owner, who.conversation_id, asked.text, chosen, after=who.seen
    ),
    "edit": lambda chats, who, asked, chosen: chats.edit(who.owner, who.conversation_id, asked.id, asked.text, chosen),
    "continue": lambda chats, who, asked, chosen: chats.continue_answer(
        who.owner, who.conversation_id, asked.id, chosen
    ),
    "retry": lambda chats, who, asked, chosen: chats.retry(who.owner, who.conversation_id, asked.id, chosen),
}
CHANGES: dict[str, Change] = {
    "edit-answer": lambda chats, who, asked: chats.edit_answer(who.owner, who.conversation_id, asked.id, asked.text),
    "version": lambda chats, who, asked: chats.go_to(who.owner, who.conversation_id, asked.id, asked.step),
    "delete": lambda chats, who, asked: chats.delete_message(who.owner, who.conversation_id, asked.id),
    "fork": lambda chats, who, asked: chats.fork(who.owner, who.conversation_id, asked.id),
}
