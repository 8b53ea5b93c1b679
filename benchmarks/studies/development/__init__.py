"""The studies that models are developed on: many small runs on finite pools of real evaluations.

`suites` says on what, `methods` with which models, `run` how; finished runs are kept by `results`
and compared by `report`. `development` are ten tables, each task left out in turn; five are for
tuning a model, five for validating it. `few_sources` has one to three sources, and in `stress` the
history is spoiled.
"""
