"""How far a run went from where it began: exact KL along what it writes, and how its texts look."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from germline.config import load_config
from germline.evaluation import HELD_OUT_NOISE
from germline.evaluation.behaviour import Behaviour, behaviour
from germline.evaluation.divergence import Divergence, Reading, read
from germline.protocols import Reader
from germline.record import RunDirectory
from germline.rollout import centre_cell, cut
from germline.run.arguments import choice_of, limit_of, path_of
from germline.run.assembly import decoding, make_engine, make_task
from germline.run.reading import let_go, rebuilt, settings_of, writers
from germline.types import Completion, GermlineError, Split


def diverged(
    path: Path | str,
    *,
    split: Split = "test",
    limit: int | None = None,
    overrides: Sequence[str] = (),
) -> tuple[Divergence, Behaviour]:
    """Let the newest weights of a run answer its task, and read the answers beside the start.

    The start is the run before its first update; both are in memory at once. Of a run that answers
    by vote, every member that votes writes for itself.

    Args:
        path: the run directory.
        split: which examples.
        limit: only the first so many of them.
        overrides: settings of task, engine and cell.

    Raises:
        GermlineError: this is no run, or its engine cannot tell how likely a text is.
    """
    choice_of("split", split, ("train", "test"))
    directory = RunDirectory.open(path_of("path", path))
    config = load_config(settings_of(directory.config, overrides, "engine"), overrides)
    task = make_task(config.task)
    examples = task.examples(split)[: limit_of(limit)]
    tuned, start = (
        rebuilt(directory, config),
        make_engine(config, ancestors=directory.ancestors),
    )
    if not isinstance(tuned, Reader) or not isinstance(start, Reader):
        for engine in (tuned, start):
            let_go(engine)
        raise GermlineError(
            f"engine.kind={config.engine.kind} cannot tell how likely a text is; use "
            "engine=inprocess"
        )
    luck = replace(decoding(config, task), noise_name=HELD_OUT_NOISE)
    readings: list[Reading] = []
    texts: list[Completion] = []
    for who in writers(directory, tuned.weights.dimension):
        for cell in cut([who], examples, centre_cell(config.cell)):
            written = tuned.generate(cell.members, cell.examples, luck)
            readings += read(tuned, start, cell.members, cell.examples, written)[0]
            texts += written[0]
    unlikely = [one.improbable for one in readings]
    return Divergence.of(readings), behaviour(texts, tuned.special_ids, unlikely)
