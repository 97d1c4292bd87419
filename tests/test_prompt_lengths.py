"""Prompts that do not fit into the model's context are refused before a run begins."""

import json
from pathlib import Path

import pytest

import germline
from germline.config import load_config
from germline.engines import pretrained
from germline.run.dry_run import dry_run
from germline.run.prompt_lengths import check_prompt_lengths
from germline.tasks import make_task
from germline.types import GermlineError

SHORT = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(40)]
LONG = {"question": "word " * 600, "answer": "word"}
TINY = {"generations": 1, "batch_size": 2, "strategy": {"population": 4}}


def rows_file(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def check(path: Path, **settings: object) -> None:
    config = load_config(
        {"task": {"kind": "jsonl", "path": str(path), "reward": "exact"}, **settings}
    )
    check_prompt_lengths(config, make_task(config.task))


def test_a_prompt_that_no_first_batch_draws_is_refused_before_anything_is_written(tmp_path):
    path = str(rows_file(tmp_path, *SHORT, LONG))
    config = {**TINY, "task": {"kind": "jsonl", "path": path, "reward": "exact"}}
    said = (
        r"\((train|test) split, 'word .*takes 6\d\d tokens and max_new_tokens=128, together 7\d\d, "
    )
    for begin in (germline.train, dry_run):
        with pytest.raises(GermlineError, match=said + r"above the model's context .* of 512"):
            begin(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_prompts_that_fit_are_not_tokenized(tmp_path, monkeypatch):
    def refuse(source):
        raise AssertionError(source)

    monkeypatch.setattr(pretrained, "load_tokenizer", refuse)
    check(rows_file(tmp_path, *SHORT))
    with pytest.raises(AssertionError, match="nano"):
        check(rows_file(tmp_path, *SHORT, LONG))


def test_bytes_that_make_few_tokens_are_accepted(tmp_path):
    check(rows_file(tmp_path, *SHORT, {"question": "word " * 60, "answer": "word"}))


def test_a_model_that_is_not_here_is_checked_by_its_engine(tmp_path):
    path = rows_file(tmp_path, *SHORT, LONG)
    check(path, model=str(tmp_path / "nowhere"))
    check(path, engine="toy")
    (tmp_path / "model").mkdir()
    for damaged in ("[]", "{", '{"text_config": []}', '{"max_position_embeddings": "512"}'):
        (tmp_path / "model" / "config.json").write_text(damaged)
        check(path, model=str(tmp_path / "model"))
