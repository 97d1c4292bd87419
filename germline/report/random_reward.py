"""Say of a run that its reward is not deterministic, as its recorded rollouts show."""

from collections.abc import Iterable
from typing import Any

from germline.config import Config
from germline.record.atomic_files import Row
from germline.report.text_format import number


def random_reward(config: Config, rollouts: Iterable[Row]) -> str:
    """Return the sentence about a reward that is not deterministic; empty where none is seen.

    Two members that answer an example of a generation with the same completion must earn the same.
    Episodes, failed gradings, rewards minus a divergence (`task.kl_coef`) and rewards of scorers,
    which may compare completions with each other, are not compared.

    Args:
        config: of the run.
        rollouts: rows of rollouts.jsonl, as `record.metrics_rows.rollout_rows` makes them.
    """
    if config.task.kl_coef is not None or config.task.scorers:
        return ""
    seen: dict[tuple[Any, ...], Row] = {}
    for row in rollouts:
        if row["failure"] is not None or "turns" in row:
            continue
        same = tuple(row[name] for name in ("generation", "example", "completion", "tokens"))
        other = seen.setdefault((*same, row["finish"]), row)
        if other["reward"] != row["reward"]:
            return (
                "The reward is not deterministic: in generation "
                f"{row['generation']} members {other['member']} and {row['member']} gave the same "
                f"answer to the same prompt and earned {number(other['reward'])} and "
                f"{number(row['reward'])}. Such noise hides what members differ in: compute the "
                "reward from the completion and the row alone."
            )
    return ""
