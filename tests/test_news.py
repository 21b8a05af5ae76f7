"""Waiting for a change of somebody's list, without a thread."""

import asyncio
import threading

import pytest

from streaming.news import News


def test_the_number_of_one_grows_and_of_nobody_else() -> None:
    news = News()
    before = news.version("ann"), news.version("bob")
    news.tell("ann")
    assert news.version("ann") > before[0]
    assert news.version("bob") == before[1]


def test_all_who_wait_for_it_are_woken_from_another_thread() -> None:
    async def wait() -> None:
        news = News()
        waiting = [asyncio.create_task(news.changed("ann", news.version("ann"))) for _ in range(3)]
        other = asyncio.create_task(news.changed("bob", news.version("bob")))
        await asyncio.sleep(0)
        threading.Thread(target=news.tell, args=("ann",)).start()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert not other.done()
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert news._waiters == {}

    asyncio.run(wait())


def test_what_has_changed_already_is_not_waited_for() -> None:
    async def wait() -> None:
        news = News()
        seen = news.version("ann")
        news.tell("ann")
        await asyncio.wait_for(news.changed("ann", seen), 10)

    asyncio.run(wait())


def test_owners_are_forgotten_and_their_number_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.news.MOST_OWNERS", 2)
    news = News()
    seen = []
    for owner in ("ann", "bob", "cid", "dan"):
        news.tell(owner)
        seen.append(news.version("ann"))
    assert len(news._versions) == 2
    assert seen == sorted(seen)
    news.tell("ann")
    assert news.version("ann") > seen[-1]
