"""One copy of the weights that perturbs, generates and applies: `toy` for tests, `inprocess` for the real thing."""

ENGINES = {
    "toy": "germline.engines.toy:ToyEngine",
    "inprocess": "germline.engines.inprocess:InProcessEngine",
}
