"""Shipped configs made small: two generations of nano on rows of our own, without services."""

from pathlib import Path

from germline.config import Config

ROWS = Path(__file__).parent / "rows"
"""Folder of a few rows of our own for the tasks of datasets."""

SMALL = (
    *("model=nano", "engine=inprocess", "fleet=local", "generations=2", "batch_size=4"),
    *("held_out.examples=4", "held_out.scorers={}", "retained={}"),
    *("task.max_new_tokens=8", "record.snapshot_every=1"),
)
PENALTIES = "{reward: {kind: repetition}, cost: {kind: length, start: 10, end: 100}}"


def small(config: Config) -> list[str]:
    """Return overrides with which a config trains in seconds; what is searched stays."""
    words = [*SMALL]
    if config.method.perturbs:
        words.append("strategy.population=4")
    for name in ("ensemble_size", "group_size"):
        if hasattr(config.method, name):
            words.append(f"method.{name}=2")
    if config.model != "nano" and config.space.layers is not None:
        words.append("space.layers=0")  # a layer that nano has
    rows = ROWS / f"{config.task.kind}.jsonl"
    if rows.exists():
        words += [f"task.path={rows}", "task.split=train", "task.test_split=null"]
    if config.task.scorers:
        words.append(f"task.scorers={PENALTIES}")
    return words
