"""What the operator is told at its start: command line, else environment."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from distributed_semaphore.protocol.address import redis_url
from semaphore_operator import __version__

EPILOG: Final = """\
environment: every option has a variable, SEMAPHORE_REDIS_URL, SEMAPHORE_REDIS_URL_FILE, SEMAPHORE_NAMESPACES,
SEMAPHORE_PORT, SEMAPHORE_SWEEP_SECONDS, SEMAPHORE_PATCH_SECONDS, SEMAPHORE_FINALIZER_SECONDS.
Kubernetes is found as kubectl finds it: the pod's service account, else KUBECONFIG.

examples:
  semaphore-operator --redis redis://redis:6379/0
  semaphore-operator --redis-file /etc/redis/url --namespaces payments,billing
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The operator's settings; times in seconds."""

    redis: str = ""
    """Address of Redis. A file is better where there is a password: arguments and environment are easily seen."""
    redis_file: Path | None = None
    """File that holds the address; read again whenever a connection is made, so that it may change."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; none: all, which takes cluster-wide rights."""
    port: int = 8080
    """Port of /livez, /readyz and /metrics; 0: a free one, which the log names."""
    host: str = "0.0.0.0"  # noqa: S104  probes and scrapers come from outside the pod
    """Address of that port."""
    sweep: float = 5.0
    """Time between two looks at Redis: how fresh the status is, and how soon a lost config is written again."""
    patch: float = 5.0
    """Least time between two status writes of one resource."""
    finalizer: float = 60.0
    """For how long a dead Redis may hold up the deletion of a resource."""
    epoch: int = 0
    """Fences config writes of an operator that no longer leads; rises with each leader."""

    def redis_url(self) -> str:
        """Give the present address of Redis.

        Raises:
            ValueError: there is none, or it is not one.
        """
        if self.redis_file is None:
            return redis_url(self.redis or None)
        try:
            return redis_url(self.redis_file.read_text().strip())
        except OSError as error:
            raise ValueError(f"the file with the address of Redis cannot be read: {error}") from None


def parse(arguments: list[str] | None = None) -> Settings:
    """Read the command line; ends the program with a message when it is wrong."""
    default = Settings()
    env = os.environ.get
    parser = argparse.ArgumentParser(
        prog="semaphore-operator",
        description="Brings DistributedSemaphore resources to Redis, and holders and waiters into their status.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--redis",
        metavar="URL",
        default=env("SEMAPHORE_REDIS_URL", ""),
        help="address of Redis, redis://host:6379/0",
    )
    parser.add_argument(
        "--redis-file",
        metavar="FILE",
        type=Path,
        default=Path(path) if (path := env("SEMAPHORE_REDIS_URL_FILE")) else None,
        help="file that holds the address (a mounted Secret); wins over --redis",
    )
    parser.add_argument(
        "--namespaces",
        metavar="A,B",
        default=env("SEMAPHORE_NAMESPACES", ""),
        help="namespaces to serve (default: all, which takes cluster-wide rights)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=int(env("SEMAPHORE_PORT", default.port)),
        help=f"port of /livez, /readyz and /metrics (default: {default.port}; 0: a free one)",
    )
    parser.add_argument("--host", default=default.host, help=f"address of that port (default: {default.host})")
    for name, value, meaning in (
        ("sweep", default.sweep, "time between two looks at Redis"),
        ("patch", default.patch, "least time between two status writes of one resource"),
        ("finalizer", default.finalizer, "for how long a dead Redis may hold up a deletion"),
    ):
        parser.add_argument(
            f"--{name}",
            metavar="SECONDS",
            type=float,
            default=float(env(f"SEMAPHORE_{name.upper()}_SECONDS", value)),
            help=f"{meaning} (default: {value:g})",
        )
    options = parser.parse_args(arguments)
    settings = Settings(
        redis=options.redis,
        redis_file=options.redis_file,
        namespaces=tuple(filter(None, (name.strip() for name in options.namespaces.split(",")))),
        port=options.port,
        host=options.host,
        sweep=options.sweep,
        patch=options.patch,
        finalizer=options.finalizer,
    )
    if not 0.1 <= settings.sweep <= 300:
        parser.error("--sweep is 0.1 to 300 seconds")
    try:
        settings.redis_url()
    except ValueError as error:
        parser.error(f"{error} (--redis, --redis-file)")
    return settings
