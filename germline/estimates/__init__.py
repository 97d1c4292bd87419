"""What a run needs before it begins: bytes and seconds, computed from a config and a config.json.

`model_shape` reads sizes, `workload` counts what a generation computes, `memory` and `seconds` hold
one equation per function, `hardware` describes a machine or measures this one, and `estimate` puts
them together. Nothing here loads a weight.
"""
