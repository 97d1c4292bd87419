"""A tracker that writes TensorBoard events: the only door to tensorboardX.

Scalars: `fitness/{mean,p20,p80,best}` and `speed/tokens_per_s` by generation, `held_out/<metric>`
by updates applied. Events of a resumed run purge those of generations that never happened.
"""

from pathlib import Path

from tensorboardX import SummaryWriter

from germline.record.rows import fitness_summary
from germline.types import GenerationRecord, Score

FLUSH_S = 5
"""The library's two minutes would leave TensorBoard empty for all of a short run."""


class TensorBoard:
    """Writes the curves of a run into its `tensorboard` folder."""

    def __init__(self, folder: Path, first_generation: int = 0) -> None:
        purge = first_generation if first_generation > 0 else None
        self._writer = SummaryWriter(
            str(folder),
            purge_step=purge,
            flush_secs=FLUSH_S,
            # File names end in whole seconds: a run resumed at once must not overwrite its events.
            filename_suffix=f".{first_generation}",
        )

    def generation(self, record: GenerationRecord) -> None:
        """Write the scalars of one generation; what is not known is left out."""
        fitness = fitness_summary(record.fitness)
        scalars = {
            "fitness/mean": fitness["mean"],
            "fitness/p20": fitness["p20"],
            "fitness/p80": fitness["p80"],
            "fitness/best": fitness["max"],
        }
        if record.evaluation.generation_s > 0:
            seconds = record.evaluation.generation_s
            scalars["speed/tokens_per_s"] = record.evaluation.tokens / seconds
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, record.generation)
        if record.held_out is not None:
            self.held_out(record.held_out)

    def held_out(self, score: Score) -> None:
        """Write a held-out score, as at the start and the end of a run."""
        self._writer.add_scalar(f"held_out/{score.metric}", score.mean, score.generation)

    def close(self) -> None:
        """Flush and release the event file."""
        self._writer.close()
