"""Prompts of a task for a model: those that do not fit, the date, the tokens that begin them."""

import datetime
import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

import germline
from germline.config import load_config
from germline.endpoint.openai_requests import ChatRequest, Message
from germline.endpoint.row_generator import RowGenerator
from germline.endpoint.rows import RowRequest
from germline.engines.pretrained import load_tokenizer
from germline.engines.prompt_batch import PromptEncoder, encode_prompt
from germline.estimates.sizes import text_lengths
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run.dry_run import dry_run
from germline.run.model_prompts import (
    _PromptLimit,
    check_prompt_lengths,
    fit_task,
    with_prompt_date,
)
from germline.run.preflight import check_run
from germline.services.serve import ServedWeights
from germline.tasks import make_task
from germline.types import Example, GermlineError

SHORT = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(40)]
LONG = {"question": "word " * 600, "answer": "word"}
STRATEGY = {"population": 4, "sigma": 0.01, "learning_rate": 0.01}
TINY = {"generations": 1, "batch_size": 2, "strategy": STRATEGY}


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
    said = r"of the (train|test) split, 'word .*takes 6\d\d tokens .* together 7\d\d, "
    for begin in (germline.train, dry_run):
        with pytest.raises(GermlineError, match=said + r"above the model's context of 512"):
            begin(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


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


def test_rows_that_do_not_fit_can_be_left_out(tmp_path, caplog):
    rows = [{**LONG, "question": f"{number} {LONG['question']}"} for number in range(10)]
    section = {"kind": "jsonl", "path": str(rows_file(tmp_path, *SHORT, *rows)), "reward": "exact"}
    config = load_config({**TINY, "task": {**section, "overlong_prompts": "drop"}})
    check_run(config, task := fit_task(config, make_task(config.task)))
    kept = [one.prompt for split in ("train", "test") for one in task.examples(split)]
    assert sorted(kept) == sorted(row["question"] for row in SHORT)
    counts = re.search(r"drop: rows left out: (\d+) to train on, (\d+) held-out", caplog.text)
    assert counts
    assert sum(map(int, counts.groups())) == 10
    path = rows_file(tmp_path, *rows)
    with pytest.raises(GermlineError, match=r"task\.overlong_prompts=drop leaves no row"):
        fit_task(config, make_task(config.task.model_copy(update={"path": path})))


CLOCK = "{% set form = '%d %b %Y' %}{{ strftime_now(form) }} {{ messages[0].content }}"


def test_a_run_records_the_date_that_the_chat_template_writes(tmp_path):
    model = shutil.copytree(NANO_DIR, tmp_path / "model")
    task = {"kind": "arithmetic", "max_new_tokens": 2}
    config = load_config({**TINY, "model": str(model), "task": task})
    assert with_prompt_date(config).task.prompt_date is None
    (model / "chat_template.jinja").write_text(CLOCK)
    path = tmp_path / "run"
    germline.train(config, path).run()
    recorded = RunDirectory.open(path).config
    assert recorded.task.prompt_date == datetime.datetime.now().astimezone().date().isoformat()


@pytest.mark.parametrize("form", ["%F", "%D %T", "%h %-d %u", "%A, %B %e", "%-H:%M %p", "%j%Z"])
def test_a_recorded_date_is_written_in_any_format(form):
    own = AutoTokenizer.from_pretrained(NANO_DIR)
    own.chat_template = f"  {{% if true %}}\n{{{{ strftime_now('{form}') }}}}{{% endif %}}"
    ids = encode_prompt(own, Example(0, "hi", "", chat=True), "2024-07-06")
    assert own.decode(ids) == datetime.datetime(2024, 7, 6).strftime(form)


def test_the_length_of_a_prompt_is_that_at_the_recorded_date(tmp_path):
    model = shutil.copytree(NANO_DIR, tmp_path / "model")
    clock = "{{ 'x x x x ' if strftime_now('%Y') == '1999' else '' }}{{ messages[0].content }}"
    (model / "chat_template.jinja").write_text(clock)
    counted = []
    for date in (None, "1999-01-01"):
        task = {"kind": "arithmetic", "prompt_date": date}
        config = load_config({**TINY, "model": str(model), "task": task})
        counted.append(text_lengths(config, make_task(config.task)).prompt)
        limit = _PromptLimit.of(config, made := make_task(config.task))
        assert limit is not None
        assert max(map(limit.tokens, made.examples("train")[: config.batch_size])) == counted[-1]
    assert counted[0] < counted[1]


def test_all_that_asks_the_weights_of_a_run_uses_the_recorded_date(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # completions of a model go there
    model = shutil.copytree(NANO_DIR, tmp_path / "model")
    (model / "chat_template.jinja").write_text(CLOCK)
    read: list[str] = []
    known = PromptEncoder._known

    def note(encoder, example, ids):
        read.append(encoder._pretrained.tokenizer.decode(ids))
        return known(encoder, example, ids)

    monkeypatch.setattr(PromptEncoder, "_known", note)
    task = {"kind": "arithmetic", "max_new_tokens": 2, "prompt_date": "2024-07-26"}
    config = load_config({**TINY, "model": str(model), "task": task})
    path, exported = str(tmp_path / "run"), str(tmp_path / "export")
    germline.train(config, path).run()
    germline.export(path, exported)
    countdown = load_config({"task": {"kind": "countdown", "chat": True}}).task
    germline.evaluate(path, limit=2)
    for source in (path, exported):
        germline.generate(source, ["What is 1 + 2?"])
        germline.evaluate(source, countdown, limit=2)
        with closing(ServedWeights.open(source)) as weights:
            request = ChatRequest(model="center", messages=[Message(role="user", content="Hello")])
            decoding = request.decoding(4)
            RowGenerator(weights).encode(
                RowRequest(weights.select("center"), request.example(), decoding, 4)
            )
    assert len(read) > 10
    # The run began with a text of its own, whether members differ at all.
    assert {text for text in read if not text.startswith("26 Jul 2024 ")} == {"1 + 1 ="}


@pytest.mark.parametrize("prompt", ["<|im_start|>What is 1?", "What is 1?"])
def test_a_prompt_that_is_sent_as_it_is_begins_once_and_is_not_ended(prompt):
    tokenizer, _ = load_tokenizer(str(NANO_DIR))
    names = {"bos": "<|im_start|>", "eos": "<|im_end|>"}
    ids = {name: tokenizer.convert_tokens_to_ids(text) for name, text in names.items()}
    tokenizer.bos_token, tokenizer.eos_token = names["bos"], names["eos"]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{names['bos']} $A {names['eos']}",
        special_tokens=[(text, ids[name]) for name, text in names.items()],
    )
    plain = tokenizer("What is 1?", add_special_tokens=False)["input_ids"]
    found = encode_prompt(tokenizer, Example(0, prompt, "", chat=False))
    assert found == [ids["bos"], *plain]


@pytest.mark.parametrize("space", ["full", "lora"])
def test_an_export_generates_by_what_the_run_applied(space, tmp_path, caplog):
    model = shutil.copytree(NANO_DIR, tmp_path / "model")
    own = json.loads((model / "generation_config.json").read_text())
    ignored = {"repetition_penalty": 1.3, "do_sample": True, "forced_eos_token_id": 5}
    given = {**own, **ignored}
    (model / "generation_config.json").write_text(json.dumps(given))
    task = {"kind": "arithmetic", "max_new_tokens": 2}
    germline.train(
        {**TINY, "model": str(model), "task": task, "space": space}, tmp_path / "run"
    ).run()
    germline.export(tmp_path / "run", tmp_path / "export")
    written = json.loads((tmp_path / "export" / "generation_config.json").read_text())
    assert not ignored.keys() & written.keys()
    assert written["eos_token_id"] == own["eos_token_id"]
    for name, value in ignored.items():
        assert caplog.text.count(f"{name}={value}") == 1


# --- the prompts of `generate` and `serve` have the form that the run trained with


SMALL: dict[str, Any] = {
    "batch_size": 2,
    "generations": 1,
    "strategy": {"population": 2, "sigma": 0.01, "learning_rate": 0.01},
    "held_out": {"examples": 2},
    "record": {"tensorboard": False, "rollouts": 1},
}
PROMPT = "What is 3 + 5?"
RAW_TASK = """
settings = {"chat": False}
train = [{"prompt": f"{i} and then", "answer": "x"} for i in range(8)]


def reward(completion, example):
    return float(example["answer"] in completion)
"""


def trained(folder, task):
    germline.train({**SMALL, "task": task}, folder).run()
    return folder


def texts(source, **options):
    return [
        one.text for one in germline.generate(str(source), [PROMPT], max_new_tokens=8, **options)
    ]


@pytest.fixture(scope="module")
def countdown(tmp_path_factory):
    task = {"kind": "countdown", "max_new_tokens": 4}
    return trained(tmp_path_factory.mktemp("form") / "countdown", task)


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory):
    task = {"kind": "arithmetic", "max_new_tokens": 4}
    return trained(tmp_path_factory.mktemp("form") / "arithmetic", task)


def test_a_run_that_sent_its_prompts_as_they_are_is_asked_so_and_says_so(countdown, caplog):
    raw = texts(countdown, chat=False)
    assert raw != texts(countdown, chat=True)  # else the next line shows nothing
    assert not caplog.text
    assert texts(countdown) == raw
    assert "as in the run that trained these weights; chat=True (--chat)" in caplog.text


def test_a_model_that_was_exported_from_such_a_run_is_asked_so_too(countdown, tmp_path, caplog):
    germline.export(countdown, tmp_path / "model", form="merged")
    facts = json.loads((tmp_path / "model" / "germline.json").read_bytes())
    entry = RunDirectory.open(countdown).journal.read()[-1]
    assert (facts["digest"], facts["generation"]) == (entry.digest, entry.update.generation)
    assert facts["config"]["task"]["kind"] == "countdown"
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["germline"],
    }
    assert entry.digest in card.text
    assert texts(tmp_path / "model") == texts(countdown, chat=False)
    assert "as in the run that trained these weights" in caplog.text
    assert not ServedWeights.open(str(tmp_path / "model")).sends_chats


@pytest.mark.parametrize("source", ["arithmetic", "nano"])
def test_a_run_of_chats_and_a_model_are_asked_through_the_template(arithmetic, caplog, source):
    source = arithmetic if source == "arithmetic" else source
    chat = texts(source, chat=True)
    assert chat != texts(source, chat=False)
    assert texts(source) == chat
    assert not caplog.text


def test_a_python_file_decides_and_its_absence_ends_nothing(tmp_path, caplog):
    file = tmp_path / "task.py"
    file.write_text(RAW_TASK)
    run = trained(tmp_path / "run", {"kind": "python", "path": str(file), "max_new_tokens": 4})
    assert texts(run) == texts(run, chat=False) != texts(run, chat=True)
    file.unlink()
    assert texts(run) == texts(run, chat=True)
