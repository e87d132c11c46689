"""The story that the demo tells, act by act, each with the real output of kubectl and a promise that is checked."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from demo.stage import NAME, NAMESPACE, BrokenPromiseError, Stage

if TYPE_CHECKING:
    from demo.stage import Worker

HERE: Final = ("-n", NAMESPACE)
RESOURCE: Final = ("dsem", NAME, *HERE)
PROCESSES, WORKERS, JOBS, HOLD, LIMIT, LEASE = 3, 10, 600, 0.02, 5, 5.0
#: The article's figures for its last design under the same load, on its author's machine; recovery with a lease of 2 s.
ARTICLE: Final = {"run": "2.84-2.88 s", "p50": "119 ms", "p99": "148-157 ms", "most": "5", "recovery": "lease + 0.02 s"}


@dataclass
class Figures:
    """What the acts have measured."""

    run: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    most: int = 0
    recovery: float = 0.0
    scaled: float = 0.0
    stuck: float = 0.0


class Story:
    """Tells the story on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.figures = Figures()
        self.workers: list[Worker] = []
        self._act = 0

    def tell(self) -> None:
        """Tell all of it.

        Raises:
            BrokenPromiseError: something did not happen as promised.
        """
        for act in (self.open, self.work, self.watch, self.crash, self.scale, self.pause, self.stick):
            act()
        self.close()

    def open(self) -> None:
        """Declare a semaphore as a resource."""
        self._title("A semaphore is declared like anything else in Kubernetes")
        stage = self.stage
        stage.kubectl("apply", "-f", "crds/")
        if NAMESPACE not in stage.kubectl("get", "namespaces", show=False):
            stage.kubectl("create", "namespace", NAMESPACE)
        stage.start_operator()
        stage.kubectl("apply", "-f", "examples/licensed-api.yaml")
        stage.kubectl("wait", "--for=condition=Ready", *RESOURCE, "--timeout=20s")
        stage.kubectl("get", "dsem", *HERE)

    def work(self) -> None:
        """Do the article's load."""
        self._title(f"{PROCESSES} processes x {WORKERS} workers, {JOBS} jobs of {HOLD * 1000:.0f} ms, {LIMIT} at once")
        self.workers = [self.stage.worker(WORKERS) for _ in range(PROCESSES)]
        for worker in self.workers:
            worker.answer()
        for worker in self.workers:
            worker.order(f"run {JOBS // PROCESSES} {HOLD}")
        self.stage.until("workers wait", lambda: self.stage.look().waiter_count > 0)
        self.stage.until("the status shows it", lambda: int(self._status().get("waiting") or 0) > 0)
        self.stage.kubectl("get", "dsem", *HERE)
        reports = [worker.answer() for worker in self.workers]
        figures = self.figures
        figures.run = max(report["end"] for report in reports) - min(report["start"] for report in reports)
        waits = sorted(wait for report in reports for wait in report["waits"])
        figures.p50, figures.p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        figures.most = most_at_once([hold for report in reports for hold in report["holds"]])
        self._check(
            f"{len(waits)} jobs in {figures.run:.2f} s, waits p50 {figures.p50 * 1000:.0f} ms and p99 "
            f"{figures.p99 * 1000:.0f} ms, never more than {figures.most} at once",
            figures.most == LIMIT and len(waits) == JOBS,
        )

    def watch(self) -> None:
        """Show who holds and who waits."""
        self._title("Holders and waiters, as anybody may see them")
        for worker in self.workers:
            worker.ask(f"go {HOLD}")
        total = PROCESSES * WORKERS
        self.stage.until("all workers are there", lambda: int(self._status().get("waiting") or 0) >= total - LIMIT - 2)
        self.stage.kubectl("get", "dsem", *HERE, "-o", "wide")
        self.stage.kubectl(
            "get", *RESOURCE, "-o",
            "custom-columns=HOLDER:.status.heldBy[0:5].pid,FENCE:.status.heldBy[0:5].fence,NEXT:.status.waitingLine[0:5].pid",
        )  # fmt: skip
        self._check("the status names who holds and who is next", len(self._status()["waitingLine"]) > 0)

    def crash(self) -> None:
        """Kill a process, and see its slots come back."""
        self._title("A worker process that holds two slots is killed with SIGKILL")
        victim = self.stage.worker(1)
        victim.answer()
        tokens = set(victim.ask("hold 2")["tokens"])
        self.stage.until("it holds", lambda: len(self._held(tokens)) == len(tokens))
        victim.process.kill()
        victim.process.wait()
        took = self.figures.recovery = self.stage.until("its slots are back", lambda: not self._held(tokens))
        expired = self.stage.look().counters.expired
        self._check(f"both slots were back after {took:.2f} s, the lease is {LEASE:.0f} s", took <= LEASE + 0.3)
        self.stage.say(f"(slots taken back because their lease ran out so far: {expired})\n")

    def scale(self) -> None:
        """Raise the limit while everybody waits."""
        self._title("The limit is raised while everybody waits")
        self.stage.kubectl("scale", *RESOURCE, "--replicas=8")
        took = self.figures.scaled = self.stage.until("eight hold", lambda: self.stage.look().held == 8)
        self._check(f"8 held {took * 1000:.0f} ms after kubectl returned; nobody had to poll", took <= 2)
        self.stage.until("the status shows 8", lambda: self._status().get("limit") == 8)
        self.stage.kubectl("get", "dsem", *HERE)

    def pause(self) -> None:
        """Pause, and go on."""
        self._title("The downstream needs a break: paused, and active again")
        self.stage.kubectl("patch", *RESOURCE, "--type=merge", "-p", '{"spec":{"state":"Paused"}}')
        self.stage.until("nobody holds", lambda: self.stage.look().held == 0)
        granted = self.stage.look().counters.granted
        self.stage.until("the status says so", lambda: self._shows(summary="Paused", holders=0))
        self.stage.kubectl("get", "dsem", *HERE)
        self._check("nothing was granted while paused", self.stage.look().counters.granted == granted)
        self.stage.kubectl("patch", *RESOURCE, "--type=merge", "-p", '{"spec":{"state":"Active"}}')
        took = self.stage.until("grants go on", lambda: self.stage.look().counters.granted > granted)
        self._check(f"grants went on {took * 1000:.0f} ms after kubectl returned", took <= 2)

    def stick(self) -> None:
        """Let the queue get stuck, and see the alert."""
        self._title("Holders that renew without working: the queue is stuck, and says so")
        for worker in self.workers:
            worker.ask("halt")
        wedged = self.stage.worker(1)
        wedged.answer()
        wedged.ask("hold 8")
        self.workers[0].ask("wait")
        took = self.figures.stuck = self.stage.until("QueueStuck", lambda: self._condition("QueueStuck") == "True")
        self.stage.until("the Event", lambda: "HoldersNotReleasing" in self._events())
        said = self.stage.kubectl("describe", *RESOURCE)
        self._check(
            f"after {took:.1f} s (queueStuckAfter is 5s) condition and Event name the cause",
            "HoldersNotReleasing" in said and "Warning" in said,
        )

    def close(self) -> None:
        """Show the figures, beside those of the article."""
        figures = self.figures
        table = Table(title="This run, beside the article's best design under the same load", title_justify="left")
        table.add_column("")
        table.add_column("here", justify="right")
        table.add_column("article (its machine)", justify="right")
        rows = (
            (f"{JOBS} jobs, floor {JOBS * HOLD / LIMIT:.1f} s", f"{figures.run:.2f} s", ARTICLE["run"]),
            ("wait p50", f"{figures.p50 * 1000:.0f} ms", ARTICLE["p50"]),
            ("wait p99", f"{figures.p99 * 1000:.0f} ms", ARTICLE["p99"]),
            ("most holders at once", str(figures.most), ARTICLE["most"]),
            ("SIGKILL to slots back", f"{figures.recovery:.2f} s, lease 5 s", ARTICLE["recovery"]),
            ("raised limit felt after", f"{figures.scaled * 1000:.0f} ms", "-"),
            ("stuck queue alerted after", f"{figures.stuck:.1f} s", "-"),
        )
        for row in rows:
            table.add_row(*row)
        self.stage.console.print(table)

    def _title(self, text: str) -> None:
        self._act += 1
        self.stage.console.print(Rule(Text(f"{self._act}. {text}", style="bold"), align="left"))

    def _check(self, promise: str, kept: bool) -> None:  # noqa: FBT001
        if not kept:
            raise BrokenPromiseError(promise)
        self.stage.console.print(Text.assemble(("✓ ", "bold green"), promise, "\n"))

    def _status(self) -> dict[str, Any]:
        time.sleep(0.1)  # it is asked for in loops, and each kubectl is a process
        body = json.loads(self.stage.kubectl("get", *RESOURCE, "-o", "json", show=False))
        status: dict[str, Any] = body.get("status", {})
        return status

    def _shows(self, **fields: object) -> bool:
        status = self._status()
        return all(status.get(field) == value for field, value in fields.items())

    def _condition(self, kind: str) -> str:
        return next((c["status"] for c in self._status().get("conditions", []) if c["type"] == kind), "")

    def _events(self) -> str:
        return self.stage.kubectl("get", "events", *HERE, show=False)

    def _held(self, tokens: set[str]) -> set[str]:
        return {holder.token for holder in self.stage.look(50).holders} & tokens


def most_at_once(holds: list[tuple[float, float]]) -> int:
    """Count how many intervals overlap at most; one that ends when another begins does not overlap it."""
    edges = sorted([(start, 1) for start, _ in holds] + [(end, -1) for _, end in holds])
    return max(accumulate(step for _, step in edges), default=0)
