"""Every error of this package, under one root."""

from __future__ import annotations


class SemaphoreError(Exception):
    """Anything that this package raises of its own accord."""


class InvalidArgument(SemaphoreError, ValueError):
    """An argument is outside its allowed range, which the text names."""


class NotConfigured(SemaphoreError):
    """Redis has no configuration for this semaphore, so it lets nobody in."""


class WrongRedis(SemaphoreError):
    """This Redis does not serve the resource that was read from Kubernetes."""


class ResourceUnreadable(SemaphoreError):
    """The DistributedSemaphore resource could not be read from Kubernetes."""


class Closed(SemaphoreError):
    """The semaphore was closed or deleted: it refuses new requests and sends waiters away."""


class QueueFull(SemaphoreError):
    """As many wait as `maxWaiting` allows."""


class WeightTooLarge(SemaphoreError):
    """The request weighs more than the semaphore's limit, so it could never be granted."""


class AcquireTimeout(SemaphoreError, TimeoutError):
    """No slot within the given time; the text says what stood in the way."""


class WouldWait(AcquireTimeout):
    """A request that may not wait (timeout 0) found no free slot, or others waiting for it."""


class SlotLost(SemaphoreError):
    """The slot is no longer this process's: its lease could not be renewed in time, or it was taken away."""


class Unavailable(SemaphoreError, ConnectionError):
    """Redis cannot be reached, or refuses this client."""
