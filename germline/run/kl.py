"""Distance of a run from its start: the exact KL on its completions, and text statistics."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from germline.config import load_config
from germline.evaluation import HELD_OUT_NOISE
from germline.evaluation.degenerate_text import DegenerateTextShares, degenerate_text_shares
from germline.evaluation.kl_divergence import KlDivergence, TextDivergence, measure_texts
from germline.protocols import TextScorer
from germline.record import RunDirectory
from germline.rollout import center_microbatch, cut_microbatches
from germline.run.build_parts import make_decoding, make_engine
from germline.run.load_run import close_engine, load_engine, writers
from germline.run.model_prompts import without_overlong
from germline.run.run_inputs import check_choice, check_limit
from germline.tasks import make_task
from germline.types import Completion, GermlineError, Split


def measure_kl(
    path: Path | str,
    *,
    split: Split = "test",
    limit: int | None = None,
    overrides: Sequence[str] = (),
) -> tuple[KlDivergence, DegenerateTextShares]:
    """Generate completions with the newest weights of a run, and measure the KL from its start.

    The start is the run before its first update; both models are in memory at once. If members
    answer by vote, every voting member generates its own completions.

    Args:
        path: the run directory.
        split: which examples.
        limit: only the first so many of them.
        overrides: settings of task, engine and microbatch.

    Raises:
        GermlineError: this is not a run, or its engine cannot compute log-probabilities.
    """
    check_choice("split", split, ("train", "test"))
    check_limit(limit)
    directory = RunDirectory.open(Path(path))
    config = load_config(directory.config, overrides)
    task = without_overlong(config, make_task(config.task))
    examples = task.examples(split)[:limit]
    tuned, start = (
        load_engine(directory, config),
        make_engine(config, ancestors=directory.ancestors),
    )
    if not isinstance(tuned, TextScorer) or not isinstance(start, TextScorer):
        for engine in (tuned, start):
            close_engine(engine)
        raise GermlineError(
            f"engine.kind={config.engine.kind} cannot compute the log-probabilities of a text; use "
            "engine=inprocess"
        )
    sampling_noise = replace(make_decoding(config, task), noise_stream=HELD_OUT_NOISE)
    readings: list[TextDivergence] = []
    texts: list[Completion] = []
    for who in writers(directory, tuned.weights.dimension):
        for microbatch in cut_microbatches([who], examples, center_microbatch(config.microbatch)):
            written = tuned.generate(microbatch.members, microbatch.examples, sampling_noise)
            readings += measure_texts(
                tuned, start, microbatch.members, microbatch.examples, written
            )[0]
            texts += written[0]
    unlikely = [reading.improbable for reading in readings]
    return KlDivergence.of(readings), degenerate_text_shares(texts, tuned.special_ids, unlikely)
