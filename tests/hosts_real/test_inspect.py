"""Inspect (inspect-ai) against `germline serve`: texts and their score."""

import json

from tests.hosts_real.harness import NEW_TOKENS, germlines_score, run_harness, write_rows
from tests.serving import serving

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import exact
from inspect_ai.solver import generate

@task
def local():
    fields = FieldSpec(input="prompt", target="answer")
    return Task(dataset=json_dataset("rows.jsonl", fields), solver=generate(), scorer=exact())
"""


def test_texts_and_their_score_are_germlines(tmp_path):
    texts = write_rows(tmp_path / "rows.jsonl")
    (tmp_path / "local.py").write_text(TASK)
    with serving("nano") as url:
        run_harness(
            "inspect",
            tmp_path,
            *("inspect_ai", "eval", "local.py", "--model", "openai-api/germline/center"),
            *("--temperature", 0, "--max-tokens", NEW_TOKENS, "--display", "none"),
            *("--log-dir", "logs", "--log-format", "json"),
            GERMLINE_BASE_URL=url,
            GERMLINE_API_KEY="none",
        )
    (file,) = (tmp_path / "logs").glob("*.json")
    log = json.loads(file.read_text())
    assert log["status"] == "success"
    outputs = [sample["output"]["choices"][0]["message"]["content"] for sample in log["samples"]]
    assert outputs == texts
    score = log["results"]["scores"][0]["metrics"]["mean"]["value"]
    assert score == germlines_score(tmp_path / "rows.jsonl") == 0.5
