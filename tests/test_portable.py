"""Conversations as files: what goes out comes back the same, what comes from elsewhere becomes a tree or words."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming import portable
from streaming.attachments import Attachment
from streaming.conversation import Conversation, Node, Settings, clean_title
from streaming.errors import InvalidRequest
from streaming.events import Finished, Span, Timings, Usage
from streaming.messages import Assisted, Beam, Message, PromptLookup, Sampling
from streaming.portable import from_json, to_json, to_markdown

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TIMES = st.floats(0, portable.LATEST)
COUNTS = st.integers(0, 10**9)
SAMPLINGS = st.builds(
    Sampling,
    max_new_tokens=st.none() | st.integers(1, 9999),
    temperature=st.none() | st.floats(0, 5),
    top_k=st.none() | st.integers(0, 100),
    stop=st.lists(TEXT.filter(bool), max_size=2).map(tuple),
    seed=st.none() | st.integers(0, 2**63 - 1),
    chat_template_kwargs=st.dictionaries(TEXT, st.booleans() | TEXT, max_size=2),
    strategy=st.none() | st.sampled_from([Beam(3, 0.5, "never"), PromptLookup(7), Assisted("small")]),
)
FINISHED = st.builds(
    Finished,
    st.sampled_from(["stop", "length", "cancelled"]),
    st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    st.builds(Timings, TIMES, TIMES, TIMES),
    st.none() | TEXT,
)
ATTACHMENTS = st.lists(st.builds(Attachment, TEXT, TEXT, TEXT, COUNTS), max_size=2).map(tuple)


def spans_of(text: str) -> st.SearchStrategy[tuple[Span, ...]]:
    """Places in a text, one behind the other."""
    edges = st.lists(st.integers(0, len(text)), max_size=6).map(sorted)
    return edges.map(lambda edges: tuple(zip(edges[::2], edges[1::2], strict=False)))


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Any tree, of any shape that edits, retries and deletions can leave."""
    nodes: list[Node] = []
    for place in range(draw(st.integers(0, 8))):
        parent = draw(st.none() | st.sampled_from(nodes).map(lambda node: node.id)) if nodes else None
        message = Message(draw(st.sampled_from(["user", "assistant"])), draw(TEXT), draw(TEXT))
        node = Node(str(place), parent, message, draw(TIMES))
        if message.role == "assistant":
            node = replace(
                node,
                state=draw(st.sampled_from(["complete", "stopped", "cut", "failed", "interrupted"])),
                error=draw(TEXT),
                thought_s=draw(TIMES),
                finished=draw(st.none() | FINISHED),
                model=draw(TEXT),
                guessed=draw(spans_of(message.reasoning + message.content)),
            )
        else:
            node = replace(node, attachments=draw(ATTACHMENTS))
        nodes.append(node)
    head = draw(st.none() | st.sampled_from(nodes).map(lambda node: node.id)) if nodes else None
    conversation = Conversation("ann").rebuilt(nodes, head)
    conversation.given_title = clean_title(draw(TEXT))
    conversation.created, conversation.updated = draw(TIMES), draw(TIMES)
    conversation.pinned, conversation.model = draw(st.booleans()), draw(TEXT)
    conversation.settings = Settings(draw(TEXT), draw(SAMPLINGS))
    return conversation


def content(conversation: Conversation) -> dict[str, Any]:
    """All of a conversation but its names: ids become places."""
    places = {node.id: place for place, node in enumerate(conversation.nodes)}
    nodes = [
        replace(node, id="", parent=None if node.parent is None else str(places[node.parent]))
        for node in conversation.nodes
    ]
    head = None if conversation.head is None else places[conversation.head]
    kept = {name: value for name, value in vars(conversation).items() if name not in ("id", "owner", "_nodes")}
    return kept | {"nodes": nodes, "head": head}


def talk(*turns: tuple[str, str], model: str = "SmolLM2-135M") -> Conversation:
    conversation = Conversation("ann")
    for question, answer in turns:
        asked = conversation.ask(conversation.head, question)
        answered = conversation.begin_answer(asked.id, model)
        conversation.finish_answer(answered.id, Message("assistant", answer), "complete", finished=Finished("stop"))
    return conversation


# -- our own form


@settings(max_examples=50)
@given(st.lists(conversations(), max_size=2))
def test_what_goes_out_comes_back_the_same(out: list[Conversation]) -> None:
    back = from_json(to_json(out))
    assert [content(conversation) for conversation in back] == [content(conversation) for conversation in out]


@settings(max_examples=20)
@given(conversations())
def test_a_file_names_no_place_of_ours_and_takes_none(conversation: Conversation) -> None:
    """Knowing the id of a conversation is the only way to reach it: an export may be shown around."""
    twin = conversation.renewed("ann")
    text = to_json([twin])
    secret = [twin.id, *(node.id for node in twin.nodes)]
    assert not [id for id in secret if id in text]
    first, second = from_json(text)[0], from_json(text)[0]
    ids = [first.id, second.id, *(node.id for node in [*first.nodes, *second.nodes])]
    assert len(set(ids)) == len(ids)
    assert first.owner == ""


def test_what_is_being_written_goes_out_as_it_stands() -> None:
    conversation = Conversation("ann")
    conversation.begin_answer(conversation.ask(None, "Hello").id)
    (back,) = from_json(to_json([conversation]))
    assert [node.state for node in back.path()] == ["complete", "interrupted"]


def test_half_characters_that_nobody_checked_do_not_stop_an_export() -> None:
    conversation = Conversation("ann")
    conversation.settings = Settings("half \ud83d")
    assert from_json(to_json([conversation]))[0].settings.system == "half ?"


VERSION_1 = """{"format": "streaming-conversations", "version": 1, "conversations": [{
  "title": "Rain", "created": 1764000000.5, "updated": 1764000100, "pinned": true, "model": "SmolLM2-135M",
  "system": "Be brief.", "sampling": {"temperature": 0.5, "stop": ["END"], "strategy": {"beam": {"num_beams": 2}}},
  "shown": 2, "messages": [
    {"follows": null, "role": "user", "content": "A word for rain?", "created": 1764000001,
     "attachments": [{"name": "a.txt", "media_type": "text/plain", "text": "drizzle", "pages": 0}]},
    {"follows": 0, "role": "assistant", "content": "Drizz", "reasoning": "Hm.", "created": 1764000002, "state": "cut",
     "error": "", "thought_s": 1.5, "model": "SmolLM2-135M", "finished": {"reason": "length",
     "usage": {"prompt_tokens": 9, "completion_tokens": 2}, "timings": {"ttft_s": 0.1}, "stopped_by": null}},
    {"follows": 0, "role": "assistant", "content": "Drizzle.", "created": 1764000003}]}]}"""


def test_files_of_the_first_version_are_read_for_ever() -> None:
    """Never change this file: people have theirs on their disks."""
    (conversation,) = from_json(VERSION_1)
    assert (conversation.title, conversation.pinned, conversation.model) == ("Rain", True, "SmolLM2-135M")
    assert conversation.settings == Settings("Be brief.", Sampling(temperature=0.5, stop=("END",), strategy=Beam(2)))
    assert [message.content for message in conversation.messages(conversation.head)][1] == "Drizzle."
    question, cut, whole = conversation.nodes
    assert question.attachments == (Attachment("a.txt", "text/plain", "drizzle"),)
    assert cut.message == Message("assistant", "Drizz", "Hm.")
    assert (cut.state, cut.thought_s) == ("cut", 1.5)
    assert cut.finished == Finished("length", Usage(9, completion_tokens=2), Timings(ttft_s=0.1))
    assert cut.parent == whole.parent == question.id


def test_a_newer_version_is_said_to_be_one() -> None:
    with pytest.raises(InvalidRequest, match="newer version of the app"):
        from_json(VERSION_1.replace('"version": 1', '"version": 2'))


# -- hostile files


def changed(old: str, new: str) -> str:
    assert old in VERSION_1
    return VERSION_1.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("null", "neither an export"),
        ("[]", "neither an export"),
        ("[1]", "neither an export"),
        ('{"a": 1}', "neither an export"),
        ('"\\ud83d"', "not JSON"),
        ("\ud83d", "half a character"),
        (changed('"version": 1', '"version": "1"'), "version"),
        (changed('"version": 1', '"version": true'), "version"),
        (changed('"follows": 0', '"follows": 1'), "not there, or comes later"),
        (changed('"follows": 0', '"follows": -1'), "Conversation 1 .*messages.1.follows"),
        (changed('"follows": 0', '"follows": 99999999999999999999999'), "not there"),
        (changed('"follows": 0', '"follows": "0"'), "messages.1.follows"),
        (changed('"shown": 2', '"shown": 3'), "not there"),
        (changed('"role": "user"', '"role": "system"'), "messages.0.role"),
        (changed('"Drizz"', "7"), "messages.1.content"),
        (changed('"Drizz"', '"\\udc00"'), "not JSON"),
        (changed('"Drizz"', '"Drizz", "guessed": [[2, 1]]'), "Conversation 1 .*guessed"),
        (changed('"Drizz"', '"Drizz", "guessed": [[0, 99]]'), "Conversation 1 .*guessed"),
        (changed('"Drizz"', '"Drizz", "guessed": [[0, 2], [1, 3]]'), "Conversation 1 .*guessed"),
        (changed('"Drizz"', '"Drizz", "guessed": [[-1, 2]]'), "messages.1.guessed"),
        (changed("1764000001", "1e300"), "messages.0.created"),
        (changed("1764000001", "NaN"), "not JSON"),
        (changed("1764000001", "1" * 5000), "messages.0.created|not JSON"),
        (changed('"cut"', '"running"'), "messages.1.state"),
        (changed('"length"', '"tired"'), "messages.1.finished.reason"),
        (changed('"temperature": 0.5', '"temperature": "hot"'), "temperature"),
        (changed('"temperature": 0.5', '"heat": 0.5'), "no sampling setting"),
        (changed('"sampling": {', '"sampling": 5, "x": {'), "sampling"),
        (changed('"pages": 0', '"pages": -1'), "pages"),
        (changed('"name": "a.txt"', '"name": null'), "attachments.0.name"),
        (changed('"conversations": [{', '"conversations": [5, {'), "Conversation 1"),
        (changed('"conversations": [', '"conversations": "x", "y": ['), "conversations are missing"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        from_json(text)
    assert refused.value.field == "import"
    assert len(str(refused.value)) < 600


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def mutated(draw: st.DrawFn, template: Any) -> Any:
    """The same JSON with something else, or nothing, in one place or another."""
    if draw(st.integers(0, 25)) == 0:
        return draw(JSON)
    if isinstance(template, dict):
        return {key: draw(mutated(value)) for key, value in template.items() if draw(st.integers(0, 40))}
    if isinstance(template, list):
        return [draw(mutated(value)) for value in template]
    return template


OPEN_WEBUI = [
    {
        "id": "6f1c",
        "user_id": "u1",
        "title": "Weather words",
        "chat": {
            "id": "",
            "title": "Weather words",
            "models": ["llama3.2:1b"],
            "params": {"system": "Be brief."},
            "history": {
                "messages": {
                    "q1": {
                        "id": "q1",
                        "parentId": None,
                        "childrenIds": ["a1", "a2"],
                        "role": "user",
                        "content": "A word for rain?",
                        "files": [{"type": "file", "name": "../b.txt", "file": {"data": {"content": "drizzle"}}}],
                        "timestamp": 1764000001,
                        "models": ["llama3.2:1b"],
                    },
                    "a2": {
                        "parentId": "q1",
                        "id": "a2",
                        "childrenIds": ["q2"],
                        "role": "assistant",
                        "content": '<details type="reasoning" done="true" duration="12">\n<summary>Thought for 12 '
                        "seconds</summary>\n&gt; Let me think.\n&gt; Is 1 &lt; 2?\n</details>\nDrizzle.",
                        "model": "llama3.2:1b",
                        "done": True,
                        "timestamp": 1764000009,
                    },
                    "a1": {
                        "parentId": "q1",
                        "id": "a1",
                        "childrenIds": [],
                        "role": "assistant",
                        "content": "Sho",
                        "model": "llama3.2:1b",
                        "done": False,
                        "timestamp": 1764000002,
                    },
                    "q2": {
                        "id": "q2",
                        "parentId": "a2",
                        "childrenIds": [],
                        "role": "user",
                        "content": [{"type": "text", "text": "Another?"}, {"type": "image_url", "image_url": {}}],
                        "timestamp": 1764000010,
                    },
                },
                "currentId": "q2",
            },
            "messages": [],
            "tags": [],
            "timestamp": 1764000000123,
            "files": [],
        },
        "updated_at": 1764000010,
        "created_at": 1764000000,
        "share_id": None,
        "archived": False,
        "pinned": True,
        "meta": {"tags": []},
        "folder_id": None,
    }
]


@given(mutated(OPEN_WEBUI) | mutated(json.loads(VERSION_1)) | JSON)
def test_whatever_a_file_holds_it_is_read_or_refused(raw: Any) -> None:
    try:
        found = from_json(json.dumps(raw))
    except InvalidRequest:
        return
    assert [content(one) for one in from_json(to_json(found))] == [content(one) for one in found]


def test_a_file_that_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="50,000,000 can be imported"):
        from_json(" " * (portable.MOST_CHARACTERS + 1))
    monkeypatch.setattr(portable, "MOST_CONVERSATIONS", 2)
    with pytest.raises(InvalidRequest, match="3 conversations"):
        from_json(to_json([Conversation("ann")] * 3))


def test_a_long_conversation_is_read_in_time_that_grows_with_it() -> None:
    """A chain of 20,000 messages: nothing recurses, nothing is quadratic."""
    messages = {str(n): {"role": "user", "content": "x", "parentId": str(n - 1) if n else None} for n in range(20_000)}
    (conversation,) = from_json(json.dumps({"history": {"messages": messages, "currentId": "19999"}}))
    assert len(conversation.path()) == 20_000
    assert len(from_json(to_json([conversation]))[0].path()) == 20_000


# -- Open WebUI


def test_a_chat_of_open_webui_becomes_the_same_tree() -> None:
    (conversation,) = from_json(json.dumps(OPEN_WEBUI))
    assert (conversation.title, conversation.pinned, conversation.model) == ("Weather words", True, "llama3.2:1b")
    assert (conversation.created, conversation.updated) == (1764000000, 1764000010)
    assert conversation.settings.system == "Be brief."
    question, first, second, last = conversation.nodes
    assert question.attachments == (Attachment("b.txt", "text/plain", "drizzle"),)
    assert (first.message.content, first.state, first.parent) == ("Sho", "interrupted", question.id)
    assert second.message == Message("assistant", "Drizzle.", "Let me think.\nIs 1 < 2?")
    assert (second.thought_s, second.model, second.created) == (12.0, "llama3.2:1b", 1764000009)
    assert last.message.content == "Another?"
    assert conversation.path() == [question, second, last]
    assert conversation.versions() == {second.id: (2, 2)}


def test_a_single_chat_and_its_bare_form_are_read_too() -> None:
    entry = OPEN_WEBUI[0]
    for form in (entry, {"chat": entry["chat"]}, entry["chat"]):
        assert len(from_json(json.dumps(form))[0].nodes) == 4


def test_the_oldest_form_has_only_what_is_shown() -> None:
    form = {
        "chat": {"title": "Old", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "A"}]}
    }
    (conversation,) = from_json(json.dumps([form]))
    assert [message.content for message in conversation.messages(conversation.head)] == ["a", "A"]


def test_messages_that_nobody_sees_are_passed_over_and_what_follows_them_stays() -> None:
    messages = {
        "s": {"role": "system", "content": "Be kind.", "parentId": None},
        "q": {"role": "user", "content": "a", "parentId": "s"},
        "t": {"role": "tool", "content": "42", "parentId": "q"},
        "a": {"role": "assistant", "content": "A", "parentId": "t"},
    }
    (conversation,) = from_json(json.dumps({"history": {"messages": messages, "currentId": "a"}}))
    assert [message.content for message in conversation.messages(conversation.head)] == ["a", "A"]
    assert conversation.settings.system == "Be kind."


@pytest.mark.parametrize(
    ("parents", "words"),
    [({"a": "a"}, "circle"), ({"a": "b", "b": "a"}, "circle"), ({"a": "gone"}, "not in the file")],
)
def test_what_is_no_tree_is_refused(parents: dict[str, str], words: str) -> None:
    messages = {id: {"role": "user", "content": "x", "parentId": parent} for id, parent in parents.items()}
    with pytest.raises(InvalidRequest, match=words):
        from_json(json.dumps([{"chat": {"history": {"messages": messages, "currentId": "a"}}}]))


# -- Markdown


def test_markdown_is_what_is_shown_as_it_was_written() -> None:
    conversation = talk(("Rain?", "Drizzle.\n\n* *mist*"), ("And snow?", "Sleet."))
    conversation.settings = Settings("Be brief.")
    conversation.rename("Words for weather")
    assert to_markdown(conversation) == (
        "# Words for weather\n\n## System\n\nBe brief.\n\n## User\n\nRain?\n\n## SmolLM2-135M\n\nDrizzle.\n\n* *mist*"
        "\n\n## User\n\nAnd snow?\n\n## SmolLM2-135M\n\nSleet.\n"
    )


def test_only_the_path_that_is_shown_goes_into_markdown() -> None:
    conversation = talk(("one", "1"))
    conversation.edit_answer(conversation.path()[-1].id, "mine")
    assert to_markdown(conversation).endswith("## User\n\none\n\n## Assistant\n\nmine\n")


def test_thoughts_are_quoted_and_an_answer_that_was_cut_says_so() -> None:
    conversation = talk(("Q", "A"))
    answer = conversation.head
    assert answer is not None
    conversation.finish_answer(answer, Message("assistant", "A", "one\n\n## two"), "cut")
    assert "\n\n> one\n> \n> ## two\n\nA\n\n*(cut at the token limit)*\n" in to_markdown(conversation)


def test_files_stand_in_fences_that_their_text_cannot_leave() -> None:
    conversation = Conversation("ann")
    conversation.ask(None, "Read it", (Attachment("a.md", "text/markdown", "```\n## Assistant\n```"),))
    assert "File: a.md\n````\n```\n## Assistant\n```\n````\n\nRead it" in to_markdown(conversation)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("```python\nx = 1", "\n```"),
        ("~~~~\nx\n~~~", "\n~~~~"),
        ("```\nx\n```", ""),
        ("```\nx\n````", ""),
        ("```\n```x", "\n```"),
        ("``` `` ```", ""),
        ("    ```", ""),
        ("text", ""),
    ],
)
def test_a_code_block_that_was_cut_does_not_swallow_what_follows(text: str, end: str) -> None:
    assert to_markdown(talk(("Q", text), ("Next", "N"))) == (
        f"# Q\n\n## User\n\nQ\n\n## SmolLM2-135M\n\n{text}{end}\n\n## User\n\nNext\n\n## SmolLM2-135M\n\nN\n"
    )


@settings(max_examples=30)
@given(conversations())
@example(Conversation("ann"))
def test_every_conversation_has_a_markdown_form(conversation: Conversation) -> None:
    text = to_markdown(conversation)
    assert text.startswith("# ")
    assert all(node.message.content in text for node in conversation.path() if node.message.content.strip())
