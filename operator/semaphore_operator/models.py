"""The DistributedSemaphore resource: the models that the CRD is generated from and that resources are read with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime  # noqa: TC003  pydantic resolves it at run time
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from distributed_semaphore.protocol import Config, Keys, State
from distributed_semaphore.protocol.config import MAX_LIMIT
from semaphore_operator.durations import PATTERN, milliseconds
from semaphore_operator.orders import Order

GROUP: Final = "semaphores.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "DistributedSemaphore"
PLURAL: Final = "distributedsemaphores"
FINALIZER: Final = "semaphores.dev/operator"
NAMED: Final = 10
"""Holders and waiters that a status names at most, which keeps the object small."""
LONGEST_NAME: Final = 253
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def rule(cel: str, message: str) -> dict[str, str]:
    """Write a validation of the API server."""
    return {"rule": cel, "message": message}


def duration(name: str, shortest: str, longest: str) -> dict[str, Any]:
    """Bound a duration: one rule, so that a wrong one gets one message that says what is allowed."""
    bounds = f"duration(self) >= duration('{shortest}') && duration(self) <= duration('{longest}')"
    cel = f"self.matches('{PATTERN}') && {bounds}"
    message = f"{name} is a duration from {shortest} to {longest}, written like 30s, 1m30s or 1h"
    return {"x-kubernetes-validations": [rule(cel, message)]}


class Model(BaseModel):
    """Camel case outside, snake case inside, and nothing changes after reading."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", use_attribute_docstrings=True
    )


class DeletionPolicy(StrEnum):
    """What becomes of the semaphore's keys in Redis when its resource is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class Alerts(Model):
    """When a condition calls for a human."""

    queue_stuck_after: Annotated[
        str, Field(max_length=24, json_schema_extra=duration("queueStuckAfter", "1s", "24h"))
    ] = "2m"
    """QueueStuck becomes True when somebody waits and nothing was granted for this long."""
    long_wait_after: Annotated[str, Field(max_length=24, json_schema_extra=duration("longWaitAfter", "1s", "24h"))] = (
        "5m"
    )
    """LongWait becomes True when slots are granted but the oldest waiter waits longer than this."""


class Spec(Model):
    """What the semaphore should be."""

    name: Annotated[
        str | None,
        Field(
            max_length=LONGEST_NAME,
            json_schema_extra={
                "x-kubernetes-validations": [
                    rule(
                        f"self.matches('^{_LABEL}([.]{_LABEL})*$')",
                        "name has lower case letters, digits and '-', in parts that '.' separates; each part begins "
                        "and ends with a letter or digit",
                    )
                ]
            },
        ),
    ] = None
    """Name within the namespace; by default metadata.name. Clients use <namespace>/<name>. Cannot be changed."""
    limit: Annotated[int, Field(ge=0, le=MAX_LIMIT, json_schema_extra={"format": "int32"})]
    """How many slots there are, 0 to 100000. 0 admits nobody. Lowering evicts no holder; raising is felt at once."""
    lease: Annotated[str, Field(max_length=24, json_schema_extra=duration("lease", "1s", "1h"))] = "30s"
    """A crashed holder's slot is free again after this long, 1s to 1h. Living holders renew by themselves."""
    state: State = State.ACTIVE
    """Active; Paused: requests queue, nothing is granted; Closed: all are turned away, holders finish."""
    max_waiting: Annotated[int, Field(ge=0, le=MAX_LIMIT, json_schema_extra={"format": "int32"})] = 10_000
    """How many may wait; further requests are refused at once."""
    max_wait: Annotated[str | None, Field(max_length=24, json_schema_extra=duration("maxWait", "1s", "24h"))] = None
    """The longest that a request may wait; no bound by default."""
    max_hold: Annotated[str | None, Field(max_length=24, json_schema_extra=duration("maxHold", "1s", "24h"))] = None
    """A hold longer than this is reported (condition HolderOverdue), never cut; no bound by default."""
    per_process_limit: Annotated[int | None, Field(ge=1, le=MAX_LIMIT, json_schema_extra={"format": "int32"})] = None
    """How many slots one process may hold or wait for; more wait inside the process. No bound by default."""
    deletion_policy: DeletionPolicy = DeletionPolicy.DELETE
    """Delete: waiters are turned away and the keys go with the last holder. Retain: Redis is left as it is."""
    alerts: Alerts = Alerts()
    """When a condition calls for a human."""

    @classmethod
    def rest(cls, raw: Any) -> Spec:
        """Give what must be known of a spec that cannot be used: its name, and what its deletion is to do."""
        known = raw if isinstance(raw, Mapping) else {}
        name, retain = known.get("name"), known.get("deletionPolicy") == DeletionPolicy.RETAIN
        usable = isinstance(name, str) and name.isprintable() and len(name) <= LONGEST_NAME
        policy = DeletionPolicy.RETAIN if retain else DeletionPolicy.DELETE
        return cls(limit=0, name=name if usable else None, deletion_policy=policy)


class Party(Model):
    """Who holds or waits."""

    pod: str | None = None
    """Its pod."""
    namespace: str | None = None
    """The pod's namespace."""
    node: str | None = None
    """The pod's node."""
    app: str | None = None
    """What the program calls itself."""
    host: str | None = None
    """Its host's name."""
    pid: str | None = None
    """Its process id."""
    since: datetime
    """Since when."""
    weight: int = 1
    """How much of the limit it takes."""


class HolderStatus(Party):
    """A holder of a slot."""

    fence: Annotated[int, Field(json_schema_extra={"format": "int64"})]
    """The fencing number of the grant."""
    free_at: datetime | None = None
    """Its process has gone silent: when its lease runs out and its slot is free. Not there while it renews."""


class WaiterStatus(Party):
    """A waiter in the queue."""

    position: int
    """1 for the next to be granted."""
    priority: int = 0
    """Higher goes first."""
    expected_wait: str | None = None
    """How long it may still wait, by the pace of recent grants; not there while nothing is granted."""


class Condition(Model):
    """One aspect of the resource's state, in the form of metav1.Condition."""

    type: str
    """Ready, RedisAvailable, QueueStuck, LongWait or HolderOverdue."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: str
    """Why, in one word."""
    message: str = ""
    """Why, in a sentence, and what to do."""
    last_transition_time: datetime
    """When status last changed."""
    observed_generation: Annotated[int, Field(json_schema_extra={"format": "int64"})] = 0
    """The generation that this was said of."""


class Status(Model):
    """What the semaphore is, as Redis knows it."""

    observed_generation: Annotated[int, Field(json_schema_extra={"format": "int64"})] = 0
    """The generation of the spec that Redis has; 0 until it has one."""
    key: str | None = None
    """Beginning of the semaphore's keys in Redis."""
    summary: str | None = None
    """The state in one word: Active, Paused, Closed, QueueStuck, RedisUnavailable, Conflict, Invalid, Pending."""
    limit: int | None = None
    """The limit in force."""
    lease_seconds: float | None = None
    """The lease in force."""
    holders: int | None = None
    """Weight of the slots held."""
    waiting: int | None = None
    """How many wait."""
    oldest_waiter_since: datetime | None = None
    """Since when the longest waiting waits."""
    last_grant_time: datetime | None = None
    """When a slot was last granted."""
    throughput: str | None = None
    """Grants per second between the last two looks."""
    held_by: Annotated[tuple[HolderStatus, ...], Field(max_length=NAMED)] = ()
    """The longest holding, at most 10."""
    waiting_line: Annotated[tuple[WaiterStatus, ...], Field(max_length=NAMED)] = ()
    """The first in line, at most 10."""
    conditions: tuple[Condition, ...] = ()
    """Ready, RedisAvailable, QueueStuck, LongWait, HolderOverdue."""

    @classmethod
    def read(cls, body: Any) -> Status:
        """Read what is stored; one that another version wrote in another form counts as none, and is written anew."""
        try:
            return cls.model_validate(dict(body or {}))
        except ValidationError:
            return cls()


class Resource(Model):
    """A DistributedSemaphore as the API server has it."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    deleted: str | None
    spec: Spec
    fault: str = ""
    """Why its spec cannot be used, though the API server has it: another schema let it through."""
    order: Order | None = None
    """Whose slots are to be taken away."""
    status: Status

    @classmethod
    def read(cls, body: Any) -> Resource:
        """Read what the API server sends.

        Raises:
            ValueError, KeyError, TypeError: it is no resource.
        """
        metadata, raw = body["metadata"], body.get("spec")
        read = cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            created=metadata["creationTimestamp"],
            deleted=metadata.get("deletionTimestamp"),
            spec=Spec(limit=0),
            order=Order.read(metadata),
            status=Status.read(body.get("status")),
        )
        try:
            read = read.model_copy(update={"spec": Spec.model_validate(dict(raw or {}))})
            read.check()
        except ValidationError as error:
            told = (f"{'.'.join(map(str, ('spec', *each['loc'])))}: {each['msg']}" for each in error.errors())
            return read.model_copy(update={"spec": Spec.rest(raw), "fault": "; ".join(told)})
        except (ValueError, TypeError) as error:
            return read.model_copy(update={"spec": Spec.rest(raw), "fault": f"spec: {error}"})
        return read

    def check(self) -> None:
        """Read everything that is read of a spec later.

        Raises:
            ValueError: it cannot be read.
        """
        _ = self.keys, self.config(0)
        for length in (self.spec.alerts.queue_stuck_after, self.spec.alerts.long_wait_after):
            milliseconds(length)

    @property
    def semaphore(self) -> str:
        """The semaphore's name, as clients use it."""
        return f"{self.namespace}/{self.spec.name or self.name}"

    @property
    def keys(self) -> Keys:
        """Its keys in Redis."""
        return Keys.of(self.semaphore)

    def config(self, epoch: int) -> Config:
        """Give the config that Redis should have."""
        spec = self.spec
        return Config(
            limit=spec.limit,
            lease_ms=milliseconds(spec.lease),
            state=spec.state,
            max_waiting=spec.max_waiting,
            max_wait_ms=milliseconds(spec.max_wait) if spec.max_wait else 0,
            max_hold_ms=milliseconds(spec.max_hold) if spec.max_hold else 0,
            per_process_limit=spec.per_process_limit or 0,
            uid=self.uid,
            generation=self.generation,
            epoch=epoch,
        )
