"""The hierarchical GP over the source tasks: what they share, and what is a task's own."""

from botorch_transfer.pretraining.population.fit import PopulationOptions
from botorch_transfer.pretraining.population.source_population import SourcePopulation

__all__ = ["PopulationOptions", "SourcePopulation"]
