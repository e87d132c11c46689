"""The command line: `python -m controlplane build | up | path`."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.build import binaries, binary
from controlplane.errors import ControlPlaneError
from controlplane.plane import ControlPlane
from controlplane.programs import PROGRAMS

if TYPE_CHECKING:
    from types import FrameType

CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kubectl", "etcd")

EPILOG = """\
environment:
  KUBEBUILDER_ASSETS=<folder>   start the programs of this folder instead of building them
  USE_EXISTING_CLUSTER=true     `up` starts nothing and names the cluster of $KUBECONFIG
  XDG_CACHE_HOME=<folder>       keep what is built in <folder>/semaphore-operator (default: ~/.cache)

examples:
  python -m controlplane build            build what a control plane needs, once
  python -m controlplane build helm       build helm too
  python -m controlplane up               start one, until Ctrl-C
  "$(python -m controlplane path kubectl)" version --client
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "build":
                for name, path in binaries(options.names or CONTROL_PLANE).items():
                    print(f"{name}: {path}")
            case "path":
                print(binary(options.name))
            case "up":
                _up(options.directory, controller_manager=not options.no_controller_manager)
    except ControlPlaneError as error:
        print(f"controlplane: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m controlplane",
        description="A real Kubernetes API server on this machine's loopback, without a container engine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="build | up | path")
    build = commands.add_parser("build", help="build programs that are not cached yet, and print where they are")
    build.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"one of {', '.join(PROGRAMS)} (default: {', '.join(CONTROL_PLANE)})",
    )
    path = commands.add_parser("path", help="print the path of one program, building it if needed")
    path.add_argument("name", help=f"one of {', '.join(PROGRAMS)}")
    up = commands.add_parser("up", help="start a control plane and keep it until Ctrl-C")
    up.add_argument("--directory", type=Path, help="folder of data and logs, kept and used again (default: temporary)")
    up.add_argument(
        "--no-controller-manager",
        action="store_true",
        help="lighter, but deleted namespaces stay and no service accounts are made",
    )
    return parser


def _up(directory: Path | None, *, controller_manager: bool) -> None:
    # SIGTERM ends it as tidily as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    with ControlPlane(directory, controller_manager=controller_manager) as plane:
        print(f"# {plane.server} is ready; data and logs are in {plane.directory}; Ctrl-C ends it.")
        print(f"export KUBECONFIG={plane.kubeconfig}")
        print(f"export PATH={plane.kubectl.parent}:$PATH", flush=True)
        signal.pause()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
