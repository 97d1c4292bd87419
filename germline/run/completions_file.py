"""The file of completions that an evaluation writes, a row for each: its name and its rows."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from germline.record import RunDirectory
from germline.record.atomic_files import explain_write_errors, write_atomically
from germline.record.metrics_rows import episode_fields
from germline.types import Evaluation, Example, GermlineError

log = logging.getLogger(__name__)

COMPLETION_START = b'{"example": '
"""How a line of a file of completions begins."""


def completions_path(
    source: str,
    directory: RunDirectory | None,
    generation: int | None,
    examples: str,
    samples: int,
) -> Path:
    """Name the file of completions: in the run directory, or of a model, which has none.

    `examples` names the task and its split.
    """
    sampled = f"-{samples}-samples" if samples > 1 else ""
    if directory is None:
        # As in the cache of Hugging Face: a/model and b/model have files of their own.
        name = os.path.normpath(source).strip("/").replace("/", "--")
        return Path(f"completions-{name}-{examples}{sampled}.jsonl")
    after = "start" if generation == -1 else generation
    ending = "" if generation is None else f"-generation-{after}"
    return directory.path / f"completions-{examples}{sampled}{ending}.jsonl"


def check_replaceable(file: Path) -> None:
    """Refuse to replace a file that exists and is neither empty nor of an earlier evaluation."""
    if not file.exists():
        return
    if not file.is_file():  # a folder, or a device, which it would replace
        raise GermlineError(f"out: {file} is no file; name the file the completions go to (--out)")
    with file.open("rb") as opened:
        start = opened.read(len(COMPLETION_START))
    if start not in (b"", COMPLETION_START):
        raise GermlineError(
            f"out: {file} exists and holds no completions of an evaluation, so it is not replaced; "
            "name another file (--out)"
        )


def write_completions(path: Path, evaluation: Evaluation, examples: Sequence[Example]) -> None:
    """Write the completions of an evaluation and their grades; a warning says what they replace."""
    by_index = {example.index: example for example in examples}
    rows = [
        {
            "example": rollout.example,
            **({"sample": rollout.member} if len(evaluation.rewards) > 1 else {}),
            "prompt": by_index[rollout.example].prompt,
            "completion": rollout.completion.text,
            "answer": by_index[rollout.example].answer,
            "reward": rollout.grade.reward,
            "parts": dict(rollout.grade.parts),
            "failure": rollout.grade.failure,
            **episode_fields(rollout),
        }
        for rollout in evaluation.rollouts
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    content = text.encode("utf-8", "backslashreplace")
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and (earlier := path.read_bytes()) != content:
            log.warning(
                "out: the %d completions of this evaluation replace the %d of an earlier one in "
                "%s: to keep such a file, move it away first, or name another one (--out, for one "
                "source at a time)",
                *(len(rows), earlier.count(b"\n"), path),
            )
    write_atomically(path, content)
