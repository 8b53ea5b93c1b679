"""Prints the oldest versions that ``pyproject.toml`` allows, as constraints for pip.

Arguments are names of packages to leave out, as ``torch`` where another version is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

EXTRAS = ("plot", "benchmarks")
BOUND = re.compile(r"^([A-Za-z0-9_.-]+)>=([0-9.]+)(,<[0-9.]+)?$")


def minimum_versions() -> Iterator[str]:
    """Goes through the dependencies, and those of extras that have no pins of their own.

    Yields:
        Lines like ``numpy==1.26.0``.

    Raises:
        ValueError: If a dependency has no lower bound.
    """
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(r for name in EXTRAS for r in extras[name])]:
        match = BOUND.match(requirement)
        if match is not None and match[1] in sys.argv[1:]:
            continue
        if match is None:
            raise ValueError(f"{requirement!r} does not look like name>=version[,<version].")
        # 1.26 stands for 1.26.0, which is how the release is called.
        yield f"{match[1]}=={match[2]}" if match[2].count(".") > 1 else f"{match[1]}=={match[2]}.0"


if __name__ == "__main__":
    print("\n".join(minimum_versions()))
