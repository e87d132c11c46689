"""What the two semaphores have in common: how they are made, and what they ask of the I/O thread."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from distributed_semaphore._arguments import check_kind, check_resource, own_cap, own_config
from distributed_semaphore._courier import Courier, courier_to, refuse_green_threads
from distributed_semaphore._errors import AcquireTimeout, InvalidArgument, SemaphoreError, Unavailable
from distributed_semaphore._request import Slot
from distributed_semaphore._resource import find_resource, wait_until_served
from distributed_semaphore._statistics import reason, seen
from distributed_semaphore.protocol.address import redis_url, without_password
from distributed_semaphore.protocol.keys import SemaphoreName
from distributed_semaphore.protocol.scripts import INSPECT, Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed_semaphore._request import Request
    from distributed_semaphore._session import Session
    from distributed_semaphore.protocol.snapshot import Snapshot

EXPLANATION: Final = 0.5
"""Seconds that a timed out request may spend on finding out why."""
NAMED: Final = 3
"""Holders that the text of a time-out names."""


class BaseSemaphore:
    """A semaphore shared by every process that uses the same name on the same Redis.

    Args:
        name: ``<namespace>/<name>`` of a DistributedSemaphore resource, or any name if you declare the semaphore here.
        redis: address, ``redis://host:6379/0``; by default what SEMAPHORE_REDIS_URL says.
        limit: declares a semaphore without Kubernetes: how many slots there are, 0 to 100000. The config of an
            operator, where there is one, wins.
        lease: with `limit`: seconds, 1 to 3600, after which a crashed holder's slot is free again; 30 by default.
        per_process_limit: how many slots this process may hold or wait for at once, 1 to 100000; further requests wait
            inside it.

    Raises:
        InvalidArgument: an argument is outside its range.
        SemaphoreError: gevent has replaced threads by greenlets, which could not renew; the text says how to use both.

    Making one costs nothing; the first request opens the connections. It may be used from any number of tasks, event
    loops and threads of a process, which all share two connections.
    """

    def __init__(
        self,
        name: str,
        *,
        redis: str | None = None,
        limit: int | None = None,
        lease: float | None = None,
        per_process_limit: int | None = None,
    ) -> None:
        refuse_green_threads()
        try:
            self._url = redis_url(redis)
            self.name: str = SemaphoreName(name)
            self._config = own_config(limit, lease)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        self._cap = own_cap(per_process_limit)

    @classmethod
    def from_resource(
        cls,
        name: str,
        namespace: str | None = None,
        *,
        redis: str | None = None,
        per_process_limit: int | None = None,
        patience: float = 10.0,
    ) -> Self:
        """Make the semaphore of a DistributedSemaphore resource, read from Kubernetes (extra `kubernetes`).

        Makes sure that this Redis serves that resource in its present generation, waiting for the operator if need be.
        Blocks for one call to each of Kubernetes and Redis; meant for the start of a program.

        Args:
            name: the resource's metadata.name.
            namespace: its namespace; by default that of the pod or of the current kubeconfig context.
            redis: as for the class.
            per_process_limit: as for the class.
            patience: seconds to wait at most for the operator to bring the resource's present generation to Redis.

        Raises:
            ResourceUnreadable: there is no such resource, or it may not be read.
            WrongRedis: this Redis does not serve the resource.
            Unavailable: Redis cannot be reached.
            InvalidArgument: an argument is outside its range.
        """
        refuse_green_threads()  # and whatever is wrong here, before anybody is asked
        check_resource(name, namespace, patience)
        own_cap(per_process_limit)
        try:
            url = redis_url(redis)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        resource = find_resource(name, namespace)
        semaphore = cls(resource.semaphore, redis=url, per_process_limit=per_process_limit)
        wait_until_served(resource, without_password(url), patience, lambda: semaphore._look()[1].config)
        return semaphore

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {without_password(self._url)}>"

    def _connect(self) -> tuple[Courier, Session]:
        courier = courier_to(self._url)
        return courier, courier.session(self.name, self._config, self._cap)

    def _look(self) -> tuple[Session, Snapshot]:
        """Look at the semaphore; blocks for one round trip.

        Raises:
            Unavailable: Redis cannot be reached.
        """
        courier, session = self._connect()
        answer: Future[Any] = Future()
        courier.submit(session.query, Call(INSPECT, session.keys, [0]), answer.set_result)
        return session, seen(courier, answer.result())

    def _check_mine(self, slot: Slot) -> None:
        """Refuse to release what is no slot of this semaphore."""
        check_kind("slot", slot, Slot)
        if slot.name != self.name:
            raise InvalidArgument(f"the slot is one of {slot.name}, not of {self.name}")

    def _withdraw(
        self, courier: Courier, session: Session, request: Request, look: Callable[[Any], None]
    ) -> SemaphoreError | None:
        """Take back a request whose time is up; None: `look` will hear what stood in its way."""
        if session.failure or not request.token:
            courier.submit(session.abandon, request)
            if session.failure:
                return Unavailable(
                    f"no slot of {self.name}: Redis {courier.shown_url} cannot be used: {session.failure}"
                )
            return AcquireTimeout(f"no slot of {self.name}: {session.at_cap}")
        call = Call(INSPECT, session.keys, [NAMED, request.token])
        courier.submit(partial(session.query, call, look, early=True))  # while the request has its place
        courier.submit(session.abandon, request)
        return None

    def _timed_out(self, courier: Courier, waited: float, reply: Any) -> AcquireTimeout:
        """Make the error of a request whose time is up; `reply`: what the look has shown, if anything."""
        said = f"no slot of {self.name} within {waited:.1f}s"
        try:
            return AcquireTimeout(f"{said}: {reason(seen(courier, reply))}" if reply is not None else said)
        except Unavailable:
            return AcquireTimeout(said)
