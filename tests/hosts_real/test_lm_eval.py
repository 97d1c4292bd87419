"""lm-evaluation-harness against `germline serve`: probabilities of given answers, and texts."""

import json

import pytest
import yaml

from germline.nano import NANO_DIR
from germline.run.weights import load_engine, open_source
from germline.types import Completion, Example
from tests.hosts_real.harness import NEW_TOKENS, QUESTIONS, germlines_score, run_harness, write_rows
from tests.serving import serving

CHOICES = ("Paris.", "Rome.", "7.", "42.", "cold.")


@pytest.fixture(scope="module")
def url():
    with serving("nano") as address:
        yield address


def samples(folder, url, model, task, path, **more):
    """Run a task of local rows; return its score and its samples."""
    settings = {
        "task": "local",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        **task,
    }
    (folder / "local.yaml").write_text(yaml.safe_dump(settings))
    arguments = {"model": "center", "base_url": f"{url}/{path}", "num_concurrent": 4, **more}
    run_harness(
        "lm_eval",
        folder,
        *("lm_eval", "run", "--model", model, "--tasks", "local", "--include_path", folder),
        *("--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())),
        *("--output_path", folder / "out", "--log_samples"),
        *(["--apply_chat_template"] if "chat" in model else []),
    )
    (file,) = (folder / "out").glob("*/samples_local_*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: row["doc_id"])


def test_probabilities_of_answers_are_the_engines(url, tmp_path):
    write_rows(tmp_path / "rows.jsonl")
    task = {
        "output_type": "multiple_choice",
        "doc_to_choice": list(CHOICES),
        "doc_to_target": 0,
        "metric_list": [{"metric": "acc"}],
    }
    more = {"tokenizer": NANO_DIR, "max_length": 512}
    rows = samples(tmp_path, url, "local-completions", task, "completions", **more)
    engine = load_engine(*open_source("nano", None, ()))
    assert len(rows) == len(QUESTIONS)
    for row, question in zip(rows, QUESTIONS, strict=True):
        found = [(float(logprob), is_greedy) for ((logprob, is_greedy),) in row["resps"]]
        expected = [of_answer(engine, question, f" {choice}") for choice in CHOICES]
        assert [logprob for logprob, _ in found] == pytest.approx(expected, abs=1e-3)
        best = max(range(len(CHOICES)), key=lambda choice: expected[choice])
        assert row["acc"] == (best == 0)


def of_answer(engine, question, answer):
    """Return the log-probability of an answer after a question."""
    encode = engine.encoder.encode
    whole = encode(Example(0, question + answer, "", chat=False))
    prompt = encode(Example(0, question, "", chat=False))
    example = Example(0, "", "", chat=False, token_ids=tuple(prompt))
    completion = Completion("", tuple(whole[len(prompt) :]), "length", len(prompt))
    return sum(engine.log_probabilities([None], [example], [[completion]])[0][0])


def test_texts_and_their_score_are_germlines(url, tmp_path):
    texts = write_rows(tmp_path / "rows.jsonl")
    task = {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {
            "until": [],
            "max_gen_toks": NEW_TOKENS,
            "do_sample": False,
            "temperature": 0,
        },
        "metric_list": [{"metric": "exact_match"}],
    }
    rows = samples(tmp_path, url, "local-chat-completions", task, "chat/completions")
    assert [row["resps"][0][0] for row in rows] == texts
    score = sum(row["exact_match"] for row in rows) / len(rows)
    assert score == germlines_score(tmp_path / "rows.jsonl") == 0.5
