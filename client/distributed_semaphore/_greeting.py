"""Whether a server will do, and lets its user do what is needed: seen before the first slot is asked for.

Else a right that only renewals need would be missed in the middle of a hold.
"""

from __future__ import annotations

import logging
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from distributed_semaphore.protocol.scripts import INSPECT, RIGHTS, Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio.connection import AbstractConnection
    from redis.exceptions import RedisError

    from distributed_semaphore._session import Session
    from distributed_semaphore._wire import Command
    from distributed_semaphore.protocol.keys import Keys

log = logging.getLogger("distributed_semaphore")

#: The oldest Redis whose scripts can do what ours do, and the oldest whose clusters can: they need sharded pub/sub.
OLDEST: Final = (6, 2)
OLDEST_CLUSTER: Final = (7, 0)


class UnfitError(ResponseError):
    """The server or the rights of this user will not do; the text says what is missing."""


async def greet(connection: AbstractConnection, session: Session, *, cluster: bool) -> bool:
    """Look whether a server will do; two round trips. False if that could not be seen with this session's keys.

    Raises:
        UnfitError: it will not.
        redis.exceptions.RedisError, OSError: the connection failed, or the server cannot answer just now.
    """
    look, rights = (script.in_cluster if cluster else script for script in (INSPECT, RIGHTS))
    # A request whose time is up leaves right behind a look at its place: the look must not find its script missing.
    loads: list[Command] = [["SCRIPT", "LOAD", look.source], ["SCRIPT", "LOAD", rights.source]]
    unsubscribe = "SUNSUBSCRIBE" if cluster else "UNSUBSCRIBE"
    replies = await _exchange(connection, [["HELLO"], *loads, [unsubscribe, session.channel]])
    _check_version(replies[0], cluster=cluster)
    user = session.courier.user
    for command, reply in (("script|load", replies[1]), (unsubscribe.lower(), replies[3])):
        _check_command(user, command, reply)
    memory: list[Command] = [["INFO", "memory"]] if session.declares else []
    tried, *said = await _exchange(
        connection, [Call(RIGHTS, session.keys, [session.courier.client]).command(rights), *memory]
    )
    if isinstance(tried, list):
        for command, words in zip(tried[::2], tried[1::2], strict=True):
            _check_command(user, command, ResponseError(words))
    elif "'evalsha" in str(tried):  # else it is about the keys, of which a session hears itself
        _check_command(user, "evalsha", tried)
    for text in said:
        _warn_of_evictions(session.courier.shown_url, str(text))
    return isinstance(tried, list)


async def _exchange(connection: AbstractConnection, commands: Sequence[Command]) -> list[Any]:
    """Send commands and read their replies, or the errors that they got."""
    await connection.send_packed_command(connection.pack_commands(commands))
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response(push_request=True))
        except ResponseError as error:
            replies.append(error)
    return replies


def _check_version(hello: Any, *, cluster: bool) -> None:
    """Refuse a server that says it is too old; some servers do not say it."""
    words = [*chain.from_iterable(hello.items())] if isinstance(hello, dict) else hello
    if not isinstance(words, list) or "version" not in words:
        return
    version = words[words.index("version") + 1]
    oldest, what = (
        (OLDEST_CLUSTER, "the oldest that works as a cluster") if cluster else (OLDEST, "the oldest that works")
    )
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        raise UnfitError(f"it is version {version}, and {oldest[0]}.{oldest[1]} is {what}")


def _check_command(user: str, command: str, reply: Any) -> None:
    """Refuse a server that does not know a command, or does not let this user run it."""
    if not isinstance(reply, ResponseError):
        return
    said = str(reply)
    if "unknown" in said.lower():
        raise UnfitError(f"it does not know {command.upper()}, as Redis 6.2 does: {said}")
    if _is_forbidden(reply):
        raise UnfitError(_lacking(user, said, None, command))


def _is_forbidden(error: RedisError) -> bool:
    words = ("ACL failure", "user executing the script")  # in a script, since Redis 7.2 and before
    return isinstance(error, NoPermissionError) or any(part in str(error) for part in words)


def is_refusal(error: RedisError) -> bool:
    """Tell whether this error of a script is there to stay, until somebody mends rights or keys."""
    passing = ("BUSY ", "MISCONF ", "NOREPLICAS ")
    return isinstance(error, NoPermissionError) or (
        type(error) is ResponseError and not any(code in str(error) for code in passing)
    )


def explain(user: str, error: RedisError, keys: Keys | None = None) -> str:
    """Say what is wrong, naming the right that is missing if one is."""
    said = str(error)[:500]
    return _lacking(user, said, keys) if _is_forbidden(error) else said


def _lacking(user: str, said: str, keys: Keys | None, command: str = "") -> str:
    """Name the right as one would write it into an ACL rule; Redis's words may or may not name the command."""
    if named := re.search(r"run the '([^']+)' command", said):
        command = named[1]
    if keys and "channel" in said:
        right = f"a pattern like &{keys.prefix}w:*"
    elif keys and re.search(r"\bkeys?\b", said):
        right = f"a pattern like ~{keys.prefix}*"
    else:
        right = f"+{command}"
    return f"user {user} lacks the right {right} (docs/redis.md names all that are needed): {said}"


def _warn_of_evictions(url: str, memory: str) -> None:
    known = dict(line.split(":", 1) for line in memory.splitlines() if ":" in line)
    policy = known.get("maxmemory_policy", "noeviction")
    if known.get("maxmemory", "0") != "0" and policy != "noeviction":
        log.warning(
            "Redis %s evicts keys when memory is full, and slots with them: maxmemory-policy is %s, not noeviction",
            url,
            policy,
        )
