"""What the operator is told at its start: command line, else environment."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from distributed_semaphore.protocol.address import redis_url
from semaphore_operator import __version__
from semaphore_operator.status import clean

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", int, float)

EPILOG: Final = """\
Every option has a variable of the environment, named above; the command line wins. Kubernetes is found by the account
of the pod, else as kubectl finds it (KUBECONFIG, ~/.kube/config).

examples:
  semaphore-operator --redis redis://redis:6379/0
  semaphore-operator --redis-file /etc/redis/url --namespaces payments,billing
  semaphore-operator --redis-file /etc/redis/url --lease semaphores/operator    (each of several replicas)

rights, metrics and conditions: docs/reference.md
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
    pods: str = ""
    """Value of the label semaphores.dev/client of the pods to watch, whose slots are freed once they have ended;
    none: no pod is watched."""
    lease: str = ""
    """`namespace/name` of the Lease that must be held to write anything; none: there is one process, and it writes."""
    lease_duration: int = 15
    """For how long nobody else may write after the last renewal: the longest time without a leader after a crash."""
    renew_deadline: float = 10.0
    """For how long a leader goes on without a renewal; shorter than the duration by all that clocks and calls take."""
    retry_period: float = 2.0
    """Time between two renewals; for followers, the longest between two looks."""
    epoch: int = 0
    """Fences config writes of an operator that no longer leads; rises with each leader. Not an option."""

    @property
    def redis_from(self) -> str:
        """Where the address of Redis comes from, for messages."""
        if self.redis_file is None:
            return "--redis"
        return f"{self.redis_file}, in the chart redis.url or redis.existingSecret and its existingSecretKey"

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
    """Read the command line, and the environment for what it does not say; ends the program when something is wrong."""
    parser = argparse.ArgumentParser(
        prog="semaphore-operator",
        description="Brings DistributedSemaphore resources to Redis, and holders and waiters into their status.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")

    def add(  # noqa: PLR0917
        option: str, variable: str, kind: Callable[[str], Any], metavar: str, default: object, meaning: str
    ) -> None:
        # A string from the environment goes through the same conversion, so that a wrong one gets the same message.
        parser.add_argument(
            option,
            type=kind,
            metavar=metavar,
            default=os.environ.get(variable) or default,
            help=f"{meaning} [{variable}]",
        )

    default = Settings()
    add("--redis", "SEMAPHORE_REDIS_URL", str, "URL", "", "address of Redis, redis://host:6379/0")
    add("--redis-file", "SEMAPHORE_REDIS_URL_FILE", Path, "FILE", None,
        "file that holds the address (a mounted Secret), read again when it changes; wins over --redis")  # fmt: skip
    add("--namespaces", "SEMAPHORE_NAMESPACES", _names, "A,B", (),
        "namespaces to serve; default: all, which takes cluster-wide rights")  # fmt: skip
    add("--port", "SEMAPHORE_PORT", _number(int, 0, 65535), "PORT", default.port,
        f"port of /livez, /readyz and /metrics; default: {default.port}; 0: a free one")  # fmt: skip
    add("--host", "SEMAPHORE_HOST", str, "HOST", default.host, f"address of that port; default: {default.host}")
    add("--sweep", "SEMAPHORE_SWEEP_SECONDS", _number(float, 0.1, 300), "SECONDS", default.sweep,
        f"time between two looks at Redis; default: {default.sweep:g}")  # fmt: skip
    add("--patch", "SEMAPHORE_PATCH_SECONDS", _number(float, 0, 3600), "SECONDS", default.patch,
        f"least time between two status writes of one resource; default: {default.patch:g}")  # fmt: skip
    add("--finalizer", "SEMAPHORE_FINALIZER_SECONDS", _number(float, 0, 86400), "SECONDS", default.finalizer,
        f"for how long a dead Redis may hold up a deletion; default: {default.finalizer:g}")  # fmt: skip
    add("--pods", "SEMAPHORE_PODS", _label, "VALUE", "",
        "free at once what pods held that are gone and were labelled semaphores.dev/client=VALUE")  # fmt: skip
    add("--lease", "SEMAPHORE_LEASE", _lease, "NAMESPACE/NAME", "",
        "Lease that replicas elect a leader by, who alone writes; default: none, this is the only process")  # fmt: skip
    add("--lease-duration", "SEMAPHORE_LEASE_DURATION_SECONDS", _number(int, 1, 3600), "SECONDS",
        default.lease_duration,
        f"how long a crashed leader keeps the Lease; default: {default.lease_duration:g}")  # fmt: skip
    add("--renew-deadline", "SEMAPHORE_RENEW_DEADLINE_SECONDS", _number(float, 0.1, 3600), "SECONDS",
        default.renew_deadline,
        f"how long a leader goes on without a renewal; default: {default.renew_deadline:g}")  # fmt: skip
    add("--retry-period", "SEMAPHORE_RETRY_PERIOD_SECONDS", _number(float, 0.05, 3600), "SECONDS",
        default.retry_period,
        f"time between two renewals; default: {default.retry_period:g}")  # fmt: skip
    settings = Settings(**vars(parser.parse_args(arguments)))
    if not settings.lease_duration > settings.renew_deadline > settings.retry_period:
        parser.error("--lease-duration must be longer than --renew-deadline, and that longer than --retry-period")
    try:
        settings.redis_url()
    except ValueError as error:
        parser.error(f"{clean(error)} (--redis, --redis-file)")
    return settings


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _lease(text: str) -> str:
    if text and not re.fullmatch(r"[a-z0-9-]+/[a-z0-9.-]+", text):
        raise argparse.ArgumentTypeError(f"namespace/name of a Lease, such as semaphores/operator, not {text}")
    return text


def _label(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"value of a label, such as true, not {text}")
    return text


def _number(kind: type[T], least: T, most: T) -> Callable[[str], T]:
    def read(text: str) -> T:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{least:g} to {most:g}, not {text}")
        return value

    read.__name__ = "number"
    return read
