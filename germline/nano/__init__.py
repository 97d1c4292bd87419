"""The embedded nano model: its weights, its tokenizer and the script that trained both.

The folder is a Hugging Face model folder as well as a package, so `NANO_DIR` loads with
`AutoModelForCausalLM.from_pretrained`; README.md is its model card.
"""

from pathlib import Path

NANO_DIR = Path(__file__).parent

WEIGHTS_SHA256 = "04a6a059df07e3ed8140a11793b65a47da1c52ba308fa7dfe2a73268f6cb716a"
"""Digest of the shipped model.safetensors, printed by `python -m germline.nano.train`."""
