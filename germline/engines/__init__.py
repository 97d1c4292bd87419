"""One copy of the weights that perturbs, generates and applies.

`toy` and `inprocess` hold the weights that play; those of `vllm` and `sglang` are in an inference
engine.
"""

ENGINES = {
    "toy": "germline.engines.toy:ToyEngine",
    "inprocess": "germline.engines.inprocess:InProcessEngine",
    "vllm": "germline.engines.vllm.engine:make_engine",
    "sglang": "germline.engines.sglang.server:make_engine",
}
