"""Estimates of memory before a run begins, from a config and a model's config.json.

`sizes` are those of a model and of a generation, `memory` has one equation per function, `machine`
tells what memory is free, and `estimate` combines them. No weights are loaded.
"""
