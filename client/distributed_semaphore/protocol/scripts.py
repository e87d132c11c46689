"""The Lua scripts, and how they are run.

Scripts are sent by their hash. A server that has forgotten one (restart, SCRIPT FLUSH) has not executed it, so it is
loaded and sent again; everything else that goes wrong is the caller's to judge.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError, RedisError

from distributed_semaphore.protocol.keys import Keys
from distributed_semaphore.protocol.snapshot import Snapshot, client_of, parse_snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from distributed_semaphore.protocol.address import AnyRedis
    from distributed_semaphore.protocol.config import Config

MORE: Final = 7
"""Index of `more` in the head of a reply (see `prelude.lua`)."""
_INCLUDE: Final = "-- include: "


class UnreadableError(ValueError):
    """What Redis has of a semaphore is not what the scripts write."""


@dataclass(frozen=True)
class Script:
    """One script: `<name>.lua` with the shared parts that it includes."""

    name: str
    for_cluster: bool = False

    @cached_property
    def in_cluster(self) -> Script:
        """The same for Redis Cluster, where only sharded pub/sub tells a script who listens."""
        return Script(self.name, for_cluster=True)

    @cached_property
    def source(self) -> str:
        """The text as Redis gets it."""
        text = "\n".join(_compose(self.name))
        if self.for_cluster:
            text = text.replace("'PUBLISH'", "'SPUBLISH'").replace("'NUMSUB'", "'SHARDNUMSUB'")
        return text

    @cached_property
    def sha(self) -> str:
        """The hash by which Redis knows it."""
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


def _compose(part: str) -> Iterable[str]:
    for line in files(__package__).joinpath("lua", f"{part}.lua").read_text("utf-8").splitlines():
        if line.startswith(_INCLUDE):
            yield from _compose(line.removeprefix(_INCLUDE))
        else:
            yield line


APPLY: Final = Script("apply")
RENEW: Final = Script("renew")
REAP: Final = Script("reap")
DECLARE: Final = Script("declare")
REVOKE: Final = Script("revoke")
FORGET: Final = Script("forget")
AUDIT: Final = Script("audit")
EVICT: Final = Script("evict")
MARK: Final = Script("mark")
INSPECT: Final = Script("inspect")
RIGHTS: Final = Script("rights")
SCRIPTS: Final = (APPLY, RENEW, REAP, DECLARE, REVOKE, FORGET, INSPECT, AUDIT, EVICT, MARK)
"""What there is to do with a semaphore; RIGHTS only tries what the scripts of a client need."""


@dataclass(frozen=True, slots=True)
class Call:
    """One script to run on one semaphore."""

    script: Script
    keys: Keys
    args: Sequence[str | int] = field(default=())

    def command(self, script: Script) -> list[str | int]:
        """Make the Redis command, with the script as that server wants it."""
        scripted = self.keys.scripted
        return ["EVALSHA", script.sha, len(scripted), *scripted, *self.args]


async def run(redis: AnyRedis, calls: Sequence[Call]) -> list[Any]:
    """Run scripts in one round trip; a failed one leaves its exception in its place.

    Raises:
        redis.exceptions.RedisError: the connection failed; any of the calls may or may not have been executed.
    """
    cluster = isinstance(redis, RedisCluster)

    async def exchange(commands: Sequence[list[str | int]]) -> list[Any]:
        if cluster and commands[0][0] == "SCRIPT":  # has no key that would say which node
            nodes = RedisCluster.PRIMARIES
            return [await redis.execute_command("SCRIPT LOAD", text, target_nodes=nodes) for _, _, text in commands]
        pipeline = redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

    scripts = [call.script.in_cluster if cluster else call.script for call in calls]
    commands = [call.command(script) for call, script in zip(calls, scripts, strict=True)]
    return await load_and_repeat(exchange, scripts, commands, await exchange(commands))


async def load_and_repeat(
    exchange: Callable[[Sequence[list[str | int]]], Awaitable[list[Any]]],
    scripts: Sequence[Script],
    commands: Sequence[list[str | int]],
    replies: list[Any],
) -> list[Any]:
    """Load scripts that the server did not know, and send again what it has not executed; give all replies."""
    for _ in range(3):
        missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if not missing:
            break
        await exchange([["SCRIPT", "LOAD", source] for source in {scripts[i].source for i in missing}])
        for i, reply in zip(missing, await exchange([commands[i] for i in missing]), strict=True):
            replies[i] = reply
    return replies


HEAD: Final = 9
"""Values in the head of a reply."""


def split_applied(reply: Sequence[Any], releases: int, acquires: int) -> tuple[Any, Any, Any, Any, int]:
    """Give head, releases, acquires, own grants and their expiry from a reply of `apply` (see its header)."""
    asked = HEAD + 1 + releases
    granted = asked + 3 * acquires
    return reply[:HEAD], reply[HEAD + 1 : asked], reply[asked:granted], reply[granted:], reply[HEAD]


def declare_call(keys: Keys, config: Config, reclaim_ms: int = 0, fence: int = 0) -> Call:
    """Make the call that writes a config (see `declare`)."""
    return Call(DECLARE, keys, [config.uid, config.generation, config.epoch, reclaim_ms, fence, *config.fields()])


async def declare(redis: AnyRedis, name: str, config: Config, *, reclaim_ms: int = 0, fence: int = 0) -> bool:
    """Write the config of a semaphore; whatever it now allows is granted in the same step. One round trip.

    Args:
        redis: where.
        name: the semaphore's name.
        config: what to write.
        reclaim_ms: if Redis has lost the config: for how long holders may put back their slots while nothing is
            granted; the longest lease that may have been in force before. 0: nobody can have held a slot.
        fence: if Redis has lost the config: the highest fence that is known; later ones are higher.

    Returns:
        False if it was refused as stale: a higher epoch, a higher generation of the same uid, or, for a config without
        uid, an operator's config stands there.
    """
    keys = Keys.of(name)
    [reply] = await run(redis, [declare_call(keys, config, reclaim_ms, fence)])
    code, more = _checked(reply)
    if more:
        await _settle(redis, name)
    return bool(code)


async def _settle(redis: AnyRedis, name: str) -> None:
    """Grant until a call no longer stops at its bound."""
    while (await reap(redis, [name]))[0]:
        pass


async def forget(redis: AnyRedis, name: str, uid: str, epoch: int = 0) -> int | None:
    """Remove a semaphore whose config has this uid: waiters get `Closed`, holders may finish. One round trip.

    The keys go with the last holder; a time to live covers holders that crashed.

    Returns:
        How many slots are still held; None if it was refused as stale: the config has a higher epoch.
    """
    [reply] = await run(redis, [Call(FORGET, Keys.of(name), [uid, epoch])])
    held = int(_checked(reply))
    return None if held < 0 else held


async def revoke(redis: AnyRedis, name: str, tokens: Sequence[str]) -> int:
    """Take slots and places in the queue away from whoever has them, who is told. One round trip each 100.

    Returns:
        How many of the tokens held or waited.
    """
    keys, taken = Keys.of(name), 0
    for start in range(0, len(tokens), 100):
        [reply] = await run(redis, [Call(REVOKE, keys, tokens[start : start + 100])])
        taken += int(_checked(reply)[0])
    await _settle(redis, name)
    return taken


async def find(redis: AnyRedis, name: str, field: str, value: str) -> list[str]:
    """Find the tokens, held and waiting, of processes whose identity has this value in a field: pod, uid, host, pid."""
    keys = Keys.of(name)
    identities = await redis.hgetall(keys.prefix + "identities")
    clients = {str(client) for client, text in identities.items() if json.loads(text).get(field) == value}
    found: list[str] = []
    if clients:
        for members in ("holders", "queue"):
            async for token, _ in redis.zscan_iter(keys.prefix + members):
                if client_of(token) in clients:
                    found.append(token)
    return found


async def evict(redis: AnyRedis, name: str, field: str, value: str, namespace: str = "") -> tuple[int, int]:
    """Take slots and places away from the processes whose identity has this value in a field: pod, uid.

    Args:
        redis: where.
        name: the semaphore's name.
        field: of the identity.
        value: what it must be.
        namespace: of the pod, unless any will do.

    Returns:
        How many slots and how many places were taken away.
    """
    keys, slots, places, following = Keys.of(name), 0, 0, 0
    while True:
        [reply] = await run(redis, [Call(EVICT, keys, [field, value, namespace, following])])
        freed, left, following = map(int, _checked(reply))
        slots, places = slots + freed, places + left
        if not following:
            break
    await _settle(redis, name)
    return slots, places


async def mark(redis: AnyRedis, calls: Sequence[tuple[str, str, int]], run_id: str) -> list[int]:
    """Note the run of the server with each config, in one round trip; where it was another before, open a reclaim.

    Args:
        redis: where.
        calls: name, uid and length of the reclaim (ms) of each.
        run_id: the server's `run_id`.

    Returns:
        For each 2 if a reclaim was opened, 1 if it was noted, 0 if there is no config of this uid, or it failed.
    """
    replies = await run(redis, [Call(MARK, Keys.of(name), [uid, run_id, ms]) for name, uid, ms in calls])
    return [0 if isinstance(reply, RedisError) else int(reply) for reply in replies]


async def inspect(redis: AnyRedis, names: Sequence[str], top: int = 10) -> list[Snapshot | Exception]:
    """Look at semaphores in one round trip, naming at most `top` holders and waiters of each.

    Returns:
        For each its snapshot, or Redis's error, or an `UnreadableError`.
    """
    replies = await run(redis, [Call(INSPECT, Keys.of(name), [top]) for name in names])
    return [read_snapshot(reply) for reply in replies]


def read_snapshot(reply: Any) -> Snapshot | Exception:
    """Read what `inspect.lua` has answered; an `UnreadableError` if something else stands there than scripts write."""
    if isinstance(reply, RedisError):
        return reply
    try:
        return parse_snapshot(reply)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return UnreadableError(f"what is stored cannot be read: {error!r}")


async def reap(redis: AnyRedis, names: Sequence[str]) -> list[bool]:
    """Take back expired slots, drop dead waiters and grant what is free, in one round trip.

    Returns:
        For each semaphore, whether the work stopped at its bound, so that it should be called again.
    """
    replies = await run(redis, [Call(REAP, Keys.of(name)) for name in names])
    return [not isinstance(reply, RedisError) and bool(reply[0][MORE]) for reply in replies]


async def audit(redis: AnyRedis, names: Sequence[str]) -> list[tuple[bool, dict[str, int]] | RedisError]:
    """Do what `reap` does, after keys that disagree have been put right (see `audit.lua`), in one round trip.

    Returns:
        For each semaphore, whether it should be called again, and how many repairs of each kind were made; or Redis's
        error: a key of another type, no memory left, a replica that takes no writes.
    """
    replies = await run(redis, [Call(AUDIT, Keys.of(name)) for name in names])
    return [reply if isinstance(reply, RedisError) else _audited(reply) for reply in replies]


def _audited(reply: Any) -> tuple[bool, dict[str, int]]:
    head, repairs = reply
    kinds = [kind.decode() if isinstance(kind, bytes) else str(kind) for kind in repairs[::2]]
    return bool(head[MORE]), dict(zip(kinds, map(int, repairs[1::2]), strict=True))


def _checked(reply: Any) -> Any:
    if isinstance(reply, RedisError):
        raise reply
    return reply
