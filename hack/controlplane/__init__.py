"""A real Kubernetes API server for tests and the demo, built from source once and started in seconds."""

from controlplane.build import binaries, binary
from controlplane.errors import BuildError, ControlPlaneError
from controlplane.plane import ControlPlane
from controlplane.processes import StartError

__all__ = ["BuildError", "ControlPlane", "ControlPlaneError", "StartError", "binaries", "binary"]
