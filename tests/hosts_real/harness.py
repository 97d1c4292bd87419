"""What the tests of harnesses share: rows, a server, and running a harness in its environment."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import germline

QUESTIONS = (
    "What is the capital of France?",
    "What is 3 plus 4?",
    "What is 12 plus 30?",
    "What is the opposite of hot?",
    "What is 7 plus 8?",
    "What is the capital of Italy?",
)
NEW_TOKENS = 24


def write_rows(file: Path) -> list[str]:
    """Write questions, of which the model answers every second one right; return its answers."""
    answers = germline.generate("nano", QUESTIONS, max_new_tokens=NEW_TOKENS)
    rows = [
        {"prompt": question, "answer": answer.text if number % 2 else "another answer"}
        for number, (question, answer) in enumerate(zip(QUESTIONS, answers, strict=True))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [answer.text for answer in answers]


def germlines_score(file: Path) -> float:
    """Return the share of exact matches that `germline eval` finds on these rows."""
    task = {"kind": "jsonl", "path": str(file), "test_path": str(file), "reward": "exact"}
    config = germline.load_config({"task": {**task, "max_new_tokens": NEW_TOKENS, "chat": True}})
    score, _ = germline.evaluate("nano", config.task, out=file.with_suffix(".completions"))
    return score.mean


def run_harness(name: str, folder: Path, *words: object, **environment: str) -> str:
    """Run a module in the environment of a harness; return what it printed."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(
        [os.environ[f"GERMLINE_{name.upper()}_PYTHON"], "-m", *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", **offline, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    if done.returncode:
        pytest.fail(f"{words[0]} ended with status {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout
