"""One copy of the weights that perturbs, generates and applies.

`toy` and `inprocess` evaluate their own weights; the copies of `vllm` and `sglang` are in an
inference engine.
"""
