"""Estimates of memory before a run begins, from a config and a model's config.json.

`model_shape` reads sizes, `workload` counts what a generation computes, `memory` has one equation
per function, `machine` tells what memory is free, and `estimate` combines them. No weights are
loaded.
"""
