"""The designs that are compared: the four of the article "Distributed Semaphores with Redis", and ours.

Each of the four is written from the article's description as a reader of it would, with nothing slow put in: scripts
are registered once, connections are kept, a release is one round trip.
"""

from dataclasses import dataclass

from benchmarks.designs.counter import Counter
from benchmarks.designs.design import Design
from benchmarks.designs.fifo import Fifo
from benchmarks.designs.notify import Notify
from benchmarks.designs.ours import Ours
from benchmarks.designs.polling import Polling

__all__ = ["DESIGNS", "TITLES", "Design", "Subject"]

DESIGNS: dict[str, type[Design]] = {
    "counter": Counter,
    "polling": Polling,
    "fifo": Fifo,
    "notify": Notify,
    "ours": Ours,
}
TITLES = {
    "counter": "1 counter",
    "polling": "2 leases, polls",
    "fifo": "3 FIFO, polls",
    "notify": "4 FIFO + notify",
    "ours": "this project",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be measured: a design, the server it runs on and a name for its semaphore."""

    design: str
    url: str
    name: str

    async def open(self, limit: int, lease: float) -> Design:
        """Make the design's instance of this process, ready for use."""
        design = DESIGNS[self.design]()
        await design.open(self.url, self.name, limit, lease)
        return design
