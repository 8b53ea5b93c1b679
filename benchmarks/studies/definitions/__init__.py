"""All studies, by name: `python -m benchmarks.studies run NAME`."""

from benchmarks.studies.definitions.definition import Definition
from benchmarks.studies.definitions.development import DEVELOPMENT
from benchmarks.studies.definitions.synthetic import SYNTHETIC
from benchmarks.studies.definitions.tables import TABLES

DEFINITIONS: dict[str, Definition] = {**SYNTHETIC, **TABLES, **DEVELOPMENT}

__all__ = ["DEFINITIONS", "Definition"]
