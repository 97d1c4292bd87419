"""Train, inspect every generation, stop, and resume later.

Run: python examples/train_and_look.py
"""

import tempfile
from pathlib import Path

import germline

SETTINGS = {
    "engine": "toy",  # a character model for quick tests; drop this line for the embedded model
    "task": {"kind": "conciseness", "max_new_tokens": 16, "stop": [" ", "e", "a"]},
    "space": "full",
    "strategy": {"population": 16, "sigma": 0.3, "learning_rate": 0.2},
    "batch_size": 16,
    "generations": 8,
    "held_out": {"every": 2, "examples": 20},
}

run = Path(tempfile.mkdtemp()) / "run"
training = germline.train(SETTINGS, run)
for record in training:
    print(f"generation {record.generation}: best member {max(record.fitness):.2f}")
    if record.held_out and record.held_out.generation >= 4:
        training.stop()

print("stopped; the resumed run continues after the last generation:")
for record in germline.resume(run):
    print(f"generation {record.generation}: best member {max(record.fitness):.2f}")

for generation in (-1, 3, 7):
    print(f"weights after generation {generation}: {germline.replay(run, generation)[:16]}")
for row in training.directory.held_out():
    print(f"after {row.score.generation} updates: {row.score.mean:.2f} characters off")
