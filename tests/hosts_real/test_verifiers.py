"""verifiers: germline plays its environments, and `vf-eval` asks `germline serve`."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.hosts_real.harness import NEW_TOKENS, QUESTIONS, germlines_score, run_harness, write_rows
from tests.serving import serving

ROOT = Path(__file__).parents[2]
RUN = """
import sys
sys.path += {paths!r}  # torch and pytest; what verifiers needs comes first
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/test_verifiers.py"]))
"""

TASKSET = """
import json
from pathlib import Path

import verifiers.v1 as vf


class Row(vf.TaskData):
    answer: str


class Question(vf.Task[Row, vf.State, vf.TaskConfig]):
    @vf.reward
    async def exact(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Questions(vf.Taskset[Question, vf.TasksetConfig]):
    def load(self):
        for line in Path("rows.jsonl").read_text().splitlines():
            yield Question(Row(**json.loads(line)), self.config.task)


__all__ = ["Questions"]
"""

SETTINGS = """
model = "center"
push = false
rich = "None"
client = {{ base_url = "{url}", api_key_var = "NO_KEY" }}
sampling = {{ temperature = 0, max_tokens = {new_tokens} }}

[env]
taskset = {{ id = "questions" }}
agent = {{ harness = {{ id = "null" }}, runtime = {{ type = "subprocess" }} }}
"""


def test_the_tests_of_verifiers_pass_in_its_environment():
    paths = [sysconfig.get_path("purelib")]
    done = subprocess.run(
        [os.environ["GERMLINE_VERIFIERS_PYTHON"], "-c", RUN.format(paths=paths)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    if done.returncode:
        pytest.fail(done.stdout[-6000:])
    assert "skipped" not in done.stdout.splitlines()[-1]


def test_texts_and_scores_of_vf_eval_are_germlines(tmp_path):
    texts = write_rows(tmp_path / "rows.jsonl")
    (tmp_path / "questions.py").write_text(TASKSET)
    # The command `vf-eval`, as its script in the environment starts it.
    (tmp_path / "vf_eval.py").write_text("from verifiers.v1.cli.eval.main import main\nmain()\n")
    with serving("nano") as url:
        (tmp_path / "eval.toml").write_text(SETTINGS.format(url=url, new_tokens=NEW_TOKENS))
        run_harness("verifiers", tmp_path, "vf_eval", "@", "eval.toml", NO_KEY="none")
    (file,) = (tmp_path / "outputs").glob("*/traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(episode["ok"] for episode in episodes)
    traces = {episode["task"]["data"]["prompt"]: episode["traces"][0] for episode in episodes}
    replies = [traces[question]["nodes"][-1]["message"]["content"] for question in QUESTIONS]
    assert replies == texts
    score = sum(trace["rewards"]["exact"]["score"] for trace in traces.values()) / len(QUESTIONS)
    assert score == germlines_score(tmp_path / "rows.jsonl") == 0.5
