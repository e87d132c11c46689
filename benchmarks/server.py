"""What is measured on: a new server or the one asked for, what it has done, and what machine this is."""

from __future__ import annotations

import os
import platform
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from distributed_semaphore.testing import RedisServer, ServerStartError, find_servers
from redis import Redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark gets to work with. The database is empty when it starts."""

    url: str
    redis: Redis
    say: Callable[[str], None]
    """Shows what is being done, in a line that the next one replaces."""
    rounds: int = 3
    """How often the article's designs run."""
    uvloop: bool = False
    """Whether the workers of all designs run on uvloop, not on the event loop of asyncio."""


class Usage(NamedTuple):
    """What a Redis server has done since it started."""

    commands: int
    """All calls, those inside scripts too; INFO itself is left out."""
    requests: int
    """Script calls that clients have sent."""
    cpu: float
    """Seconds of its main thread, user and system."""


def usage(redis: Redis) -> Usage:
    """Read the server's own account."""
    stats = redis.info("commandstats")
    cpu = redis.info("cpu")
    return Usage(
        commands=sum(entry["calls"] for command, entry in stats.items() if command != "cmdstat_info"),
        requests=sum(stats[command]["calls"] for command in ("cmdstat_evalsha", "cmdstat_eval") if command in stats),
        cpu=cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"],
    )


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Give the address of a server: the one asked for, else a new one, Debian's redis-server before an embedded one."""
    if url:
        with Redis.from_url(url) as redis:
            if redis.dbsize():
                shown = redis.connection_pool.connection_kwargs
                where = f"database {shown.get('db', 0)} of {shown.get('host', shown.get('path'))}"
                sys.exit(f"{where} is not empty, and the benchmarks flush it: name an empty one, redis://host:6379/15")
        yield url
        return
    try:
        started = RedisServer(find_servers().get("redis")).start()
    except ServerStartError as error:
        sys.exit(str(error))
    try:
        yield started.url
    finally:
        started.stop()


def busy(seconds: float = 0.3) -> float:
    """Measure which part of the CPUs' time is in use; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    before = [int(ticks) for ticks in stat.read_text().split()[1:8]]
    time.sleep(seconds)
    user, nice, system, idle, iowait, irq, softirq = (
        int(ticks) - earlier for ticks, earlier in zip(stat.read_text().split()[1:8], before, strict=True)
    )
    working = user + nice + system + irq + softirq
    return working / max(1, working + idle + iowait)


def machine_of(redis: Redis) -> str:
    """Name the machine and the versions that the figures belong to."""
    about = redis.info("server")
    valkey = about.get("valkey_version")
    return ", ".join(
        [
            f"{len(os.sched_getaffinity(0))} cores of {_cpu_model()}",
            f"{platform.system()} {platform.release()}",
            f"Valkey {valkey}" if valkey else f"Redis {about['redis_version']}",
            f"Python {platform.python_version()}",
            f"redis-py {version('redis')} with hiredis {version('hiredis')}",
            f"uvloop {version('uvloop')}",
        ]
    )


def _cpu_model() -> str:
    cpus = Path("/proc/cpuinfo")
    for line in cpus.read_text().splitlines() if cpus.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
