"""The embedded nano model: its weights and its tokenizer (benchmarks/nano_training made both).

The folder is a Hugging Face model folder as well as a package, so `NANO_DIR` loads with
`AutoModelForCausalLM.from_pretrained`; README.md is its model card.
"""

from germline.config.config_files import NANO_DIR as NANO_DIR

WEIGHTS_SHA256 = "f5e9d77c5f015d5df3a49384bafafa6bb3f9e51cec4eb0258ca3c6a039fa5468"
"""Digest of the shipped model.safetensors, printed by benchmarks/nano_training/train_model.py."""
