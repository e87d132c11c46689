"""The protocol's scripts on a real server, in a world that the test steers: clock, listeners, messages and lifetimes.

Every script runs as it is shipped, but for one substitution: `redis.call` becomes the Lua function `world` below. It
answers TIME from a key, NUMSUB from a set of channels, and turns PUBLISH into mail that the test delivers or loses;
real subscriptions, whose messages arrive when they like, are tested in tests/redis. So a lease of an hour runs out
without sleeping, and one seed always gives one run. Lifetimes of keys are a hundred thousand times as long on the
server, so that only the test's clock ends them. And it refuses what is written after an announcement (rule 2).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import redis
from distributed_semaphore.protocol import Keys
from distributed_semaphore.protocol.scripts import SCRIPTS, split_applied

if TYPE_CHECKING:
    from collections.abc import Callable

STRETCH: Final = 100_000
"""By how much lifetimes of keys are stretched on the server."""
START_US: Final = 1_790_000_000_000_000
"""The clock's first reading, microseconds since 1970."""
TICKET_EPOCH_MS: Final = 1_735_689_600_000
STEP: Final = 1 << 40

WORLD: Final = """
local PLACE = string.sub(KEYS[1], 1, -8) .. 'test:'
local announced = false
local function world(command, first, second, third, ...)
  if command == 'TIME' then
    return redis.call('HMGET', PLACE .. 'clock', 's', 'us')
  elseif command == 'PUBSUB' then
    local listening = {}
    for _, channel in ipairs({ second, third, ... }) do
      listening[#listening + 1] = channel
      listening[#listening + 1] = redis.call('SISMEMBER', PLACE .. 'listeners', channel)
    end
    return listening
  elseif command == 'PUBLISH' then
    announced = true
    if redis.call('SISMEMBER', PLACE .. 'listeners', first) == 1 then
      redis.call('RPUSH', PLACE .. 'mail', first, second)
      return 1
    end
    return 0
  elseif command == 'PEXPIRE' then
    return redis.call(command, first, second * 100000)
  end
  if announced and (command == 'ZADD' or command == 'HSET') then
    error('written after an announcement: ' .. command .. ' ' .. first)
  end
  if third ~= nil then
    return redis.call(command, first, second, third, ...)
  elseif second ~= nil then
    return redis.call(command, first, second)
  end
  return redis.call(command, first)
end
"""

LOOK: Final = """
local PREFIX = string.sub(KEYS[1], 1, -8)
local left, mail = {}, redis.call('LRANGE', PREFIX .. 'test:mail', 0, -1)
redis.call('DEL', PREFIX .. 'test:mail')
for i = 1, 7 do
  left[i] = redis.call('PTTL', i == 7 and PREFIX .. 'config' or KEYS[i])
end
local function scores(i)
  return redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES')
end
return {
  scores(1), scores(2), scores(3), scores(4), redis.call('HGETALL', KEYS[5]), redis.call('HGETALL', KEYS[6]),
  redis.call('HGETALL', PREFIX .. 'config'), left, mail,
}
"""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the server knows of the semaphore, times in ms; `lifetimes` has those of the keys that exist."""

    now: int
    holders: dict[str, int]
    queue: dict[str, int]
    clients: dict[str, int]
    grants: dict[str, int]
    identities: dict[str, str]
    counters: dict[str, str]
    config: dict[str, str]
    lifetimes: dict[str, int | None]

    @property
    def tally(self) -> tuple[int, ...]:
        """Give ticket, fence, extra, pace, granted, released, waited, time of the last release."""
        return tuple(map(int, self.counters.get("tally", "0 0 0 0 0 0 0 0").split()))


class Steered:
    """One semaphore on a server, whose clock stands still between two calls of `advance`.

    Args:
        url: the server.
        change: what to make of the source of a script before it is loaded.
    """

    def __init__(self, url: str, change: Callable[[str], str] = str) -> None:
        self._redis = redis.Redis.from_url(url, decode_responses=True)
        self._keys = Keys.of("models/semaphore")
        self._sources = {
            script.name: WORLD + change(script.source).replace("redis.call", "world") for script in SCRIPTS
        }
        self._sources["look"] = LOOK
        self._shas = {
            name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() for name, text in self._sources.items()
        }
        for source in self._sources.values():
            self._redis.script_load(source)
        self.reset()

    def reset(self) -> None:
        """Begin anew: an empty server, the clock at its start, nobody listens."""
        self._redis.flushdb()
        self.us = START_US
        self.mail: list[tuple[str, str]] = []
        self.listening: set[str] = set()
        self.state = self._look([])[1]

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    @property
    def now(self) -> int:
        """The clock, in ms."""
        return self.us // 1000

    def advance(self, ms: int) -> None:
        """Let time pass; keys whose life ends by then are gone."""
        self.us += ms * 1000
        for key, left in self.state.lifetimes.items():
            if left is not None:
                name = self._keys.prefix + key
                if left > ms:
                    self._redis.pexpire(name, (left - ms) * STRETCH)
                else:
                    self._redis.delete(name)
        self.state = self._look([])[1]

    def listen(self, client: str, *, listening: bool) -> None:
        """Open or close the ear of a process."""
        if listening:
            self.listening.add(client)
            self._redis.sadd(self._keys.prefix + "test:listeners", self._keys.channel(client))
        else:
            self.listening.discard(client)
            self._redis.srem(self._keys.prefix + "test:listeners", self._keys.channel(client))

    def wipe(self) -> None:
        """Lose all that the server knew of the semaphore."""
        self._redis.delete(self._keys.config, *self._keys.scripted)
        self.state = self._look([])[1]

    def call(self, script: str, *args: str | int) -> Any:
        """Run a script and look; what it published to listeners is added to `mail`, as (client, text)."""
        keys = self._keys.scripted
        reply, self.state = self._look(["EVALSHA", self._shas[script], len(keys), *keys, *args])
        if script == "apply":
            releases = int(args[1])
            return split_applied(reply, releases, (len(args) - 2 - releases) // 3)
        return reply

    def _look(self, command: list[str | int]) -> tuple[Any, State]:
        keys = self._keys.scripted
        pipeline = self._redis.pipeline(transaction=False)
        seconds, us = divmod(self.us, 1_000_000)
        pipeline.hset(self._keys.prefix + "test:clock", mapping={"s": seconds, "us": us})
        if command:
            pipeline.execute_command(*command)
        pipeline.execute_command("EVALSHA", self._shas["look"], len(keys), *keys)
        replies = pipeline.execute()
        *scores, identities, counters, config, left, mail = replies[-1]
        self.mail += [(channel.rsplit(":", 1)[1], text) for channel, text in _pairs(mail)]
        names = ("holders", "queue", "clients", "grants", "identities", "counters", "config")
        state = State(
            self.now,
            *({member: int(score) for member, score in _pairs(flat)} for flat in scores),
            *(dict(_pairs(flat)) for flat in (identities, counters, config)),
            {
                name: None if ttl == -1 else -(-ttl // STRETCH)
                for name, ttl in zip(names, left, strict=True)
                if ttl != -2
            },
        )
        return replies[1] if command else None, state


def _pairs(flat: list[str]) -> list[tuple[str, str]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
