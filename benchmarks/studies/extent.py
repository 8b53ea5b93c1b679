"""How much of a study a folder holds, or is to hold: it only ever grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.studies.methods import METHODS

SETTINGS = ("name", "acquisition", "fitting", "evaluations", "initial")


@dataclass(frozen=True)
class Extent:
    """How much of a study was asked for.

    Args:
        seeds: The number of seeds, the first ones.
        tasks: The number of tasks that are targets, the first ones.
        methods: The methods' names.
    """

    seeds: int
    tasks: int
    methods: list[str]

    def with_more(self, other: Extent) -> Extent:
        """What holds both."""
        either = {*self.methods, *other.methods}
        return Extent(
            max(self.seeds, other.seeds),
            max(self.tasks, other.tasks),
            [name for name in METHODS if name in either],
        )


def grown(path: Path, about: Mapping[str, Any], asked: Extent) -> Extent:
    """All that was asked for in a folder, now and earlier.

    Args:
        path: The file that describes the folder's study, if it has one.
        about: What that file is to say of the study.
        asked: What is asked for now.

    Returns:
        The extent of both together.

    Raises:
        ValueError: If the folder holds another study, or one with other settings.
    """
    if not path.exists():
        return asked
    earlier = json.loads(path.read_text(encoding="utf-8"))
    for key in SETTINGS:
        if earlier[key] != about[key]:
            raise ValueError(
                f"{path.parent} holds a study with {key} {earlier[key]}, not {about[key]}: take "
                "another folder (--out)."
            )
    if "extent" not in earlier:  # a folder of an earlier revision
        return asked
    return Extent(**earlier["extent"]).with_more(asked)
