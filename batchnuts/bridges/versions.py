"""The libraries whose models bridges take: which versions work, and what is said of others."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from batchnuts.bridges.errors import NotInstalledError, text_of
from batchnuts.mcmc.model.variables import ModelError


@dataclass(frozen=True)
class Library:
    """A library whose models a bridge takes."""

    title: str
    """Its name in messages."""
    package: str
    """Its name for pip and, in Python, for `import`."""
    oldest: tuple[int, ...]
    """The oldest version that works; pyproject.toml's extra of the package's name asks for the same."""
    untried: str
    """The first version after those that were tried."""
    extra: str = ""
    """The extra of pyproject.toml that has it, if that has another name."""
    only_tried: bool = False
    """Whether later versions are refused: what is used of it is not its public interface."""

    def check_version(self) -> None:
        """Raise NotInstalledError where the library is missing, ModelError where it is too old; imports nothing."""
        version = self.version()
        needed = ".".join(map(str, self.oldest))
        if self.only_tried and _numbers(version, 2) >= _numbers(self.untried, 2):
            wanted = f"'{self.package}>={needed},<{self.untried}'"
            raise ModelError(
                f"{self.title} {version} is newer than what batchnuts was tested with: pip install {wanted}."
            )
        if _numbers(version, len(self.oldest)) < self.oldest:
            raise ModelError(
                f"{self.title} {version} is too old; batchnuts works with {needed} and later: "
                f"pip install -U '{self.package}>={needed}'."
            )

    def require(self) -> None:
        """Import the library. Raises NotInstalledError, and ModelError where it cannot be imported or is too old."""
        self.check_version()
        try:
            importlib.import_module(self.package)
        except Exception as error:
            raise ModelError(
                f"{self.title} {self.version()} cannot be imported: {text_of(error)}. A newer version may work: pip "
                f"install -U {self.package}."
            ) from error

    @contextmanager
    def importing(self) -> Iterator[None]:
        """A context for imports of names that another release may lack: it raises ModelError then."""
        try:
            yield
        except ImportError as error:
            needed = ".".join(map(str, self.oldest))
            raise ModelError(
                f"{self.title} {self.version()} cannot be used: {text_of(error)}. batchnuts was tested with versions "
                f"from {needed} to below {self.untried}: pip install -U '{self.package}>={needed},<{self.untried}'."
            ) from error

    def version(self) -> str:
        """The installed version. Raises NotInstalledError."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            raise NotInstalledError(
                f"A model of {self.title} needs {self.title}, which is not installed: "
                f"pip install 'batchnuts[{self.extra or self.package}]'."
            ) from None


def _numbers(version: str, count: int) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:count])


NUMPYRO = Library("NumPyro", "numpyro", (0, 21), "0.23")
"""Before 0.21 it cannot be imported beside JAX 0.10."""

PYMC = Library("PyMC", "pymc", (5, 26), "6.5")
"""Earlier ones ask for versions of PyTensor that have no `pytensor.graph.traversal`."""

STAN = Library("stanli", "stanli", (0, 24), "0.25", extra="stan", only_tried=True)
"""Stan's compiler and mathematics in one shared library; what is called in it is BridgeStan's C interface."""
