"""Estimates of memory and time before a run begins, from a config and a model's config.json.

`model_shape` reads sizes, `workload` counts what a generation computes, `memory` and `seconds` have
one equation per function, `hardware` describes a machine or measures this one, and `estimate`
combines them. No weights are loaded.
"""
