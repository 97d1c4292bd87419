"""One copy of the weights that perturbs, generates and applies: `toy` or `inprocess`."""

ENGINES = {
    "toy": "germline.engines.toy:ToyEngine",
    "inprocess": "germline.engines.inprocess:InProcessEngine",
}
