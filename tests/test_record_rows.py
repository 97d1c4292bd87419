"""Rows and events: generations in numbers, rollouts in words, nothing lost on the way."""

import dataclasses
import math
import random
from pathlib import Path

import numpy as np
import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.record.atomic_files import append_rows, keep_rows, read_rows
from germline.record.metrics_rows import (
    HeldOutSample,
    batch_examples,
    generation_row,
    mean_parts,
    paired_samples,
    rollout_rows,
    spread_by_reward,
)
from germline.types import GenerationRecord, GermlineError, Rollout, Signals
from tests.synthetic_runs import BATCH, record, rollout, score
from tests.toy_runs import run

SIGNALS = Signals(
    informative_examples=0.5,
    informative_pairs=None,
    empty=0.0,
    zero=False,
    zeros_in_a_row=0,
    agreement=None,
    directions=2.0,
)


def test_what_is_not_finite_is_null_in_a_row(tmp_path: Path) -> None:
    append_rows(tmp_path / "rows", [{"a": math.nan, "b": [np.float64("inf"), np.int64(3)]}])
    assert read_rows(tmp_path / "rows") == [{"a": None, "b": [None, 3]}]


@pytest.mark.parametrize(
    "text", ["two\nlines\r\n", "line\u2028separator\u0085", "lone \udc80 surrogate", "\x00\x1b[31m"]
)
def test_text_of_any_kind_survives_a_row(tmp_path: Path, text: str) -> None:
    append_rows(tmp_path / "rows", [{"text": text}, {"text": "next"}])
    assert read_rows(tmp_path / "rows") == [{"text": text}, {"text": "next"}]


def test_a_damaged_row_is_named_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b'{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(GermlineError, match="rows, line 2: damaged"):
        read_rows(tmp_path / "rows")


def test_dropping_rows_also_drops_a_torn_one(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3')
    keep_rows(tmp_path / "rows", lambda row: row["a"] < 3)
    assert (tmp_path / "rows").read_bytes() == b'{"a": 1}\n{"a": 2}\n'


def test_a_generation_row_has_fitness_speed_and_settings() -> None:
    row = generation_row(record(4, [[1.0, 1.0], [0.0, 0.0], [math.nan, 0.5]], failure="timeout"))
    assert (row["fitness"]["mean"], row["fitness"]["min"], row["fitness"]["max"]) == (0.5, 0.0, 1.0)
    assert (row["best_member"], row["missing"], row["failures"]) == (0, 1, {"timeout": 6})
    assert (row["generation"], row["sigma"], row["learning_rate"]) == (4, 0.1, 1 / 3)
    assert row["timing"] == {"generate_s": 2.0, "apply_s": 0.125}
    row = generation_row(record(4))
    assert (row["tokens"], row["tokens_per_s"]) == (400, 200.0)
    nothing = dataclasses.replace(record(0), fitness=(math.nan, math.nan), utilities=(0.0, 0.0))
    row = generation_row(nothing)
    assert (row["fitness"]["mean"], row["best_member"]) == (None, None)


def test_a_generation_row_holds_the_signals_and_says_whether_there_is_one(tmp_path: Path) -> None:
    assert generation_row(record(0, [[1.0, 0.0], [0.0, 1.0]]))["zero_signal"] is True
    assert generation_row(record(0))["zero_signal"] is False
    row = generation_row(dataclasses.replace(record(0), signals=SIGNALS))
    assert row["signals"]["informative_examples"] == 0.5
    assert row["zero_signal"] is False
    silent = dataclasses.replace(SIGNALS, zero=True)
    assert generation_row(dataclasses.replace(record(0), signals=silent))["zero_signal"] is True
    append_rows(tmp_path / "rows", [row])
    assert read_rows(tmp_path / "rows") == [row]


def with_parts(parts: list[dict[str, float]]) -> list[Rollout]:
    return [
        dataclasses.replace(one, grade=dataclasses.replace(one.grade, parts=some))
        for some, one in zip(parts, record(0).evaluation.rollouts, strict=False)
    ]


def test_a_generation_row_has_the_mean_of_each_part_where_it_is_known(tmp_path: Path) -> None:
    parts = [{"a": 1.0, "kl": math.nan}, {"a": 2.0, "kl": 0.5}, {"a": 6.0, "lost": math.nan}]
    assert mean_parts(with_parts(parts)) == pytest.approx(
        {"a": 3.0, "kl": 0.5, "lost": math.nan}, nan_ok=True
    )
    assert mean_parts(with_parts([{"a": 1.0}, {"a": 2.0}])) == {}
    one = record(0)
    several = dataclasses.replace(one.evaluation, rollouts=tuple(with_parts(parts)))
    row = generation_row(dataclasses.replace(one, evaluation=several))
    append_rows(tmp_path / "rows", [row])
    assert read_rows(tmp_path / "rows")[0]["parts"] == {"a": 3.0, "kl": 0.5, "lost": None}
    assert "parts" not in generation_row(one)


def test_rollouts_are_kept_from_the_best_to_the_worst_and_missing_rewards_last() -> None:
    rollouts = [rollout(member, 0, float(member)) for member in range(9)]
    assert [one.grade.reward for one in spread_by_reward(rollouts, 3)] == [8.0, 4.0, 0.0]
    rollouts = [rollout(0, 0, math.nan, "engine died"), rollout(1, 0, -5.0), rollout(2, 0, 1.0)]
    assert [one.member for one in spread_by_reward(rollouts, 3)] == [2, 1, 0]
    equal = [rollout(member, example, 1.0) for member in range(6) for example in range(4)]
    shuffled = random.Random(0).sample(equal, len(equal))
    assert spread_by_reward(shuffled, 5) == spread_by_reward(equal, 5)


def test_a_rollout_row_holds_prompt_text_parts_and_failure() -> None:
    row = rollout_rows(record(2, failure="timeout"), BATCH, 1)[0]
    assert row == {
        "generation": 2,
        "member": 0,
        "example": 7,
        "prompt": "question 7?",
        "completion": "says 0",
        "tokens": 2,
        "finish": "eos",
        "reward": 1.0,
        "parts": {"exact": 1.0},
        "failure": "timeout",
    }


def test_tensorboard_events_carry_what_a_generation_recorded(tmp_path: Path) -> None:
    one = record(0, held_out=dataclasses.replace(score(1), parts={"kl": 0.25, "lost": math.nan}))
    several = tuple(with_parts([{"a": 1.0, "kl": 0.5}, {"a": 2.0, "kl": 1.0}]))
    metrics: dict[str, object] = {"lambda": 2.0, "center_cost": None, "option_probabilities": {}}
    one = dataclasses.replace(
        one,
        evaluation=dataclasses.replace(one.evaluation, rollouts=several),
        strategy_metrics=metrics,
        signals=SIGNALS,
    )
    found = _scalars(tmp_path, [(0, one)])
    signals = {name for name in found if name.startswith("signals/")}
    assert {"signals/informative_examples", "signals/zero"} <= signals
    assert "signals/agreement" not in signals
    assert {name: values for name, values in found.items() if name not in signals} == {
        "fitness/mean": [(0, 0.4375)],
        "fitness/p20": [(0, pytest.approx(0.4))],
        "fitness/p80": [(0, pytest.approx(0.475))],
        "fitness/best": [(0, 0.5)],
        "search/sigma": [(0, pytest.approx(0.1))],
        "search/lambda": [(0, 2.0)],
        "parts/a": [(0, 1.5)],
        "parts/kl": [(0, 0.75)],
        "speed/tokens_per_s": [(0, 200.0)],
        "held_out/exact": [(1, 0.5)],
        "held_out_parts/kl": [(1, 0.25)],
    }


def test_a_resume_purges_events_of_generations_that_never_happened(tmp_path: Path) -> None:
    lost = [(0, record(generation, held_out=score(generation))) for generation in range(4)]
    resumed = [(2, record(2, held_out=score(2, 0.9)))]
    assert _scalars(tmp_path, lost + resumed)["held_out/exact"] == [
        (0, 0.5),
        (1, 0.5),
        (2, pytest.approx(0.9)),
    ]


@pytest.mark.parametrize(("patience", "scored"), [("null", [0, 2, 4]), ("1", [0, 2])])
def test_tensorboard_has_the_held_out_scores_before_and_after_training(tmp_path, patience, scored):
    settings = ("record.tensorboard=true", "held_out.every=2", f"held_out.patience={patience}")
    path = run(tmp_path / "run", *settings)
    scores = [row.score for row in RunDirectory.open(path).held_out()]
    assert [score.generation for score in scores] == scored
    shown = _read_scalars(path / "tensorboard")[f"held_out/{scores[0].metric}"]
    assert [at for at, _ in shown] == [one.generation for one in scores]
    assert [mean for _, mean in shown] == pytest.approx([one.mean for one in scores])


def _scalars(
    folder: Path, records: list[tuple[int, GenerationRecord]]
) -> dict[str, list[tuple[int, float]]]:
    """Write records, one tracker per first generation, and read them."""
    from germline.run.trackers import TensorBoard

    for first in dict.fromkeys(first for first, _ in records):
        tracker = TensorBoard(folder, first)
        for start, one in records:
            if start == first:
                tracker.on_generation(one)
                if one.held_out:
                    tracker.on_held_out(one.held_out)
        tracker.close()
    return _read_scalars(folder)


def _read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the scalars of a folder as TensorBoard does."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir(), key=lambda one: int(one.suffix[1:])):
        data = path.read_bytes()
        while data:
            # A record is: length, checksum of the length, message, checksum of the message.
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.session_log.status == event.session_log.START:
                for values in found.values():
                    values[:] = [one for one in values if one[0] < event.step]
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_samples_of_equal_prompts_are_paired_in_order() -> None:
    before = [HeldOutSample("guess", f"before {n}", "", 0.0) for n in range(3)]
    after = [HeldOutSample("guess", f"after {n}", "", 1.0) for n in range(2)]
    other = HeldOutSample("other", "alone", "", None)
    assert paired_samples([before[0], other, *before[1:]], after) == [
        (before[0], after[0]),
        (other, None),
        (before[1], after[1]),
        (before[2], None),
    ]


@pytest.mark.parametrize(
    ("rows", "examples"),
    [
        ([], 8),
        ([{"rollouts": 12}], 3),
        ([{"rollouts": 32}], 8),
        ([{"rollouts": 40}], 8),
        ([{"rollouts": 32}, {"rollouts": 20}], 5),
    ],
)
def test_the_examples_of_a_generation_are_at_most_those_of_the_task(rows, examples):
    config = load_config({"batch_size": 8, "strategy": {"population": 4}})
    assert batch_examples(rows, config) == examples
    chosen = {"kind": "sep_cma", "sigma": 0.1}  # The strategy chooses the population.
    without = load_config({"batch_size": 8, "space": "subspace", "strategy": chosen})
    assert batch_examples(rows, without) == 8


def test_the_examples_of_samples_of_the_center_are_counted_by_the_group() -> None:
    config = load_config({"method": {"kind": "zo_grpo", "group_size": 4}, "batch_size": 8})
    assert batch_examples([{"rollouts": 12}], config) == 3
