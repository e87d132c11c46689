"""The main job, end to end: `python -m demo [--keep]`."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console
from rich.text import Text

from controlplane.errors import ControlPlaneError
from demo.stage import NAMESPACE, BrokenPromiseError, Stage
from demo.story import Story
from distributed_semaphore.testing import ServerStartError

NEXT = """\
Everything is still running. In another terminal:

  export KUBECONFIG={kubeconfig}
  export SEMAPHORE_REDIS_URL={redis}
  alias kubectl={kubectl}
  kubectl get dsem -n {namespace} -w
  kubectl scale dsem licensed-api -n {namespace} --replicas=20
  kubectl explain dsem.spec
  .venv/bin/python examples/worker/worker.py        # a worker of your own

Ctrl-C ends it all."""


def main() -> int:
    """Run the demo; the exit code says whether every promise was kept."""
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Shows the operator at work on a real API server and a real Redis, in about half a minute.",
    )
    parser.add_argument("--keep", action="store_true", help="leave everything running and say what to try next")
    keep = parser.parse_args().keep
    console = Console(soft_wrap=True, highlight=False)
    start = time.monotonic()
    with Stage(console) as stage:
        try:
            stage.start()
            Story(stage).tell()
            console.print(
                Text(f"Every promise was kept; it took {time.monotonic() - start:.0f} s.", style="bold green")
            )
            if keep:
                console.print(Text(_what_next(stage)))
                while True:
                    time.sleep(3600)
        except BrokenPromiseError as error:
            console.print(Text(f"✗ {error}", style="bold red"))
            if stage.log.exists():
                console.print(Text("The operator's log ends with:\n" + stage.log.read_text()[-3000:]))
            return 1
        except (ControlPlaneError, ServerStartError) as error:
            console.print(Text(f"✗ {error}", style="bold red"))
            return 1
        except KeyboardInterrupt:
            console.print(Text("\nEnded."))
            return 0 if keep else 130
    return 0


def _what_next(stage: Stage) -> str:
    return NEXT.format(
        kubeconfig=stage.plane.kubeconfig, redis=stage.redis_url, kubectl=stage.plane.kubectl, namespace=NAMESPACE
    )


if __name__ == "__main__":
    sys.exit(main())
