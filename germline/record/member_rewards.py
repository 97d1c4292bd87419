"""The reward of every member on every example of a generation (`record.rewards`).

    rewards/000024.npz      rewards [members, examples], examples [examples]

Rewards are float64 and NaN where they are missing. `examples` are the indices of the rows in the
training data, in the columns of `rewards`. Where the center samples, its samples take the place of
members. The file is compressed, and the same bytes whenever the same generation is run.
"""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from germline.record.atomic_files import write_atomically
from germline.types import Evaluation, Example, GermlineError


class MemberRewards(NamedTuple):
    """The rewards of a generation, see the module."""

    rewards: Float64[np.ndarray, "members examples"]
    examples: Int64[np.ndarray, " examples"]


def write_rewards(
    folder: Path, generation: int, evaluation: Evaluation, batch: Sequence[Example]
) -> None:
    """Write the rewards of a generation."""
    folder.mkdir(exist_ok=True)
    examples = np.array([example.index for example in batch], dtype=np.int64)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, rewards=evaluation.rewards.astype(np.float64), examples=examples)
    write_atomically(_file(folder, generation), buffer.getvalue())


def read_rewards(folder: Path, generation: int) -> MemberRewards:
    """Read the rewards of a generation.

    Raises:
        GermlineError: they were not recorded, or the file is damaged.
    """
    file = _file(folder, generation)
    try:
        # numpy leaves a file open that it opened itself and that is damaged.
        with file.open("rb") as opened, np.load(opened) as found:
            return MemberRewards(found["rewards"], found["examples"])
    except FileNotFoundError:
        raise GermlineError(
            f"{file} is not there: record.rewards=true keeps the rewards of later generations"
        ) from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise GermlineError(f"{file} is damaged ({error}); restore it from a copy") from None


def drop_rewards(folder: Path, after: int) -> None:
    """Delete the rewards of generations after this one."""
    for file in folder.glob("*.npz"):
        if file.stem.isdecimal() and int(file.stem) > after:
            file.unlink()


def _file(folder: Path, generation: int) -> Path:
    return folder / f"{generation:06}.npz"
