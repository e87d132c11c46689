"""The errors of this package, each saying what to do next."""


class ControlPlaneError(RuntimeError):
    """The control plane cannot be started or asked for what was asked."""


class BuildError(ControlPlaneError):
    """A program cannot be built; the text ends with what the compiler said."""
