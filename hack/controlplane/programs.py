"""The programs of a control plane: where their source is, which version it has, where their binary is kept."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

# DWARF, which the linker drops anyway (-s -w), costs 17 % of the CPU that compiling takes, and inlining within
# Kubernetes' own 1,800 packages 28 % of the rest; README.md has the figures.
FLAGS = ("-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-gcflags=k8s.io/...=-dwarf=false -l")
# Go variables that a release build sets: the module whose version they tell, the variable, its value.
STAMPS = (
    ("k8s.io/kubernetes", "k8s.io/component-base/version.gitVersion", "v{major}.{minor}.{patch}"),
    ("k8s.io/kubernetes", "k8s.io/component-base/version.gitMajor", "{major}"),
    ("k8s.io/kubernetes", "k8s.io/component-base/version.gitMinor", "{minor}"),
    ("k8s.io/kubernetes", "k8s.io/client-go/pkg/version.gitVersion", "v{major}.{minor}.{patch}"),
    ("helm.sh/helm/v4", "helm.sh/helm/v4/internal/version.version", "v{major}.{minor}.{patch}"),
)


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its name, its Go package, and the folder whose go.mod pins its version."""

    name: str
    package: str
    module: Path = HERE

    @property
    def version(self) -> str:
        """The version that the go.mod pins, such as v1.37.2; of a program of the module itself what Go says of it."""
        pinned = _pinned(self.module).items()
        return next((number for path, number in pinned if f"{self.package}/".startswith(f"{path}/")), "(devel)")

    @property
    def built_as(self) -> str:
        """The file name that `go build` gives it: the last part of the package's path that is no version."""
        parts = self.package.split("/")
        return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]

    @property
    def cached(self) -> Path:
        """Where the binary is, or will be: in a folder named by all that decides its content, its peers beside it."""
        digest = hashlib.sha256()
        digest.update((self.module / "go.mod").read_bytes())
        digest.update((self.module / "go.sum").read_bytes())
        digest.update(repr((build_flags(self.module), platform.system(), platform.machine())).encode())
        return cache() / "bin" / digest.hexdigest()[:16] / self.name


PROGRAMS = {
    program.name: program
    for program in (
        Program("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        Program("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Program("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        Program("etcd", "go.etcd.io/etcd/server/v3"),
        # Helm pins Kubernetes modules of its own, so it has a go.mod of its own.
        Program("helm", "helm.sh/helm/v4/cmd/helm", HERE / "helm"),
    )
}


def build_flags(module: Path) -> list[str]:
    """Return the flags of `go build` for the programs of one go.mod, with their versions, which nothing else tells."""
    link = ["-s", "-w"]
    pinned = _pinned(module)
    for source, variable, template in STAMPS:
        if source in pinned:
            major, minor, patch = pinned[source].removeprefix("v").split(".", 2)
            link += ["-X", f"{variable}={template.format(major=major, minor=minor, patch=patch)}"]
    return [*FLAGS, "-ldflags", " ".join(link)]


def cache() -> Path:
    """Return the folder, outside the tree, where all that is fetched or built is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "semaphore-operator"


def _pinned(module: Path) -> dict[str, str]:
    """Return the modules that a go.mod requires, with their versions."""
    text = (module / "go.mod").read_text()
    return dict(re.findall(r"^(?:require)?\s*(\S+) (v\S+)(?: // indirect)?$", text, flags=re.MULTILINE))
