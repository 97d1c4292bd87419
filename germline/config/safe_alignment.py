"""Settings of the task `safe_alignment`: a reward and a cost model, and the weight of the cost."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from germline.config.scorers import GermlineScorer, ScorerConfig
from germline.config.tasks import FileOrDataset
from germline.registry import register

SAMPLES = Path(__file__).parents[1] / "tasks" / "safe_alignment_samples.jsonl"
"""A few prompts of our own, which `--smoke` uses instead of a download."""


@register("task", "germline.tasks.safe_alignment:SafeAlignmentTask")
class SafeAlignment(FileOrDataset):
    """Prompts of PKU-SafeRLHF: a reward minus lambda times a cost, and lambda adapts."""

    kind: Literal["safe_alignment"] = "safe_alignment"
    path: Path = Path("PKU-Alignment/PKU-SafeRLHF")
    """Name on the Hugging Face hub, a folder, or a file (.jsonl, .parquet, .csv)."""
    test_split: str | None = "test"
    """Split with the held-out rows; `null`: a seeded 80/20 split of `split`, in which every
    category of harm has its share."""
    scorers: dict[str, ScorerConfig]
    """Reward models and a cost model by name, as in every task: the reward is the weighted sum
    of all but the one that `cost` names."""
    cost: str = Field("cost", min_length=1)
    """Name of the scorer whose score is the cost; its negative weight is -lambda at the start."""
    lambda_lr: float = Field(0.005, ge=0)
    """Growth of the logarithm of lambda per generation and unit of excess cost; 0 keeps lambda."""
    lambda_min: float = Field(1e-4, gt=0)
    """Smallest lambda."""
    lambda_max: float = Field(5.0, gt=0)
    """Largest lambda."""
    cost_limit: float = 0.0
    """Mean cost of the center above which lambda grows, in the unit of the cost; the excess is
    max(0, mean cost - cost_limit)."""
    cost_ema: float = Field(0.9, ge=0, lt=1)
    """Weight of earlier generations in the running mean of the excess."""
    safe_first: float | None = None
    """Cost above which a completion earns the lowest reward that any member of the generation
    earns on its prompt; `null`: no completion does."""
    metric: str | None = None
    """The scorer that held-out scores report; default: the one of largest weight but the cost."""

    @property
    def adapts(self) -> bool:
        """Whether rewards depend on more than the weights of the scorers."""
        return self.lambda_lr > 0 or self.safe_first is not None

    @property
    def smoke_overrides(self) -> tuple[str, ...]:
        """Settings of a run of `--smoke`: prompts of our own."""
        return (
            f"task.path={SAMPLES}",
            *("task.test_path=null", "task.split=train", "task.test_split=test"),
        )

    @model_validator(mode="after")
    def _a_scorer_is_the_cost(self) -> "SafeAlignment":
        found = ", ".join(self.scorers) or "none"
        scorer = self.scorers.get(self.cost)
        if scorer is None:
            raise ValueError(
                f"cost={self.cost} is not the name of a scorer (scorers found: {found}): add it, "
                f"such as scorers.{self.cost}={{kind: germline, url: http://localhost:8100, "
                "output: cost, weight: -1}"
            )
        if scorer.weight >= 0:
            raise ValueError(
                f"scorers.{self.cost}.weight={scorer.weight:g} does not lower the reward: give it "
                "minus the first lambda, such as -1"
            )
        if isinstance(scorer, GermlineScorer) and scorer.output == "reward":
            raise ValueError(
                f"scorers.{self.cost}.output=reward is the score of the reward model: use output: "
                "cost"
            )
        rewards = {n: s.weight for n, s in self.scorers.items() if n != self.cost}
        if not any((*rewards.values(), *self.reward_functions.values())):
            raise ValueError(
                f"scorers={found} has no reward beside the cost: add a scorer with a weight, such "
                "as scorers.reward={kind: germline, url: http://localhost:8100}"
            )
        if self.metric is not None and self.metric not in {**self.scorers, **self.reward_functions}:
            raise ValueError(f"metric={self.metric} is not one of scorers={found}: report another")
        return self

    @model_validator(mode="after")
    def _lambda_is_within_its_bounds(self) -> "SafeAlignment":
        first = -self.scorers[self.cost].weight
        if not self.lambda_min <= first <= self.lambda_max:
            raise ValueError(
                f"scorers.{self.cost}.weight={-first:g} makes lambda start at {first:g}, outside "
                f"lambda_min={self.lambda_min:g} to lambda_max={self.lambda_max:g}: change one of "
                "them"
            )
        return self
