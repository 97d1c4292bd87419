"""`germline new`: settings for a model and a task that load, fit, and say why."""

import math

import pytest
import yaml
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.config import load_config
from germline.estimates.machine import Machine
from germline.estimates.memory import estimate
from germline.estimates.recommended_config import config_text, recommend
from germline.estimates.sizes import shape_of, text_lengths
from germline.report.text_format import duration
from germline.run import dry_run
from germline.run.dry_run import MeasuredTime, measure_time
from germline.tasks import make_task
from tests.published_models import published
from tests.tiny import save_tiny

pytestmark = pytest.mark.usefixtures("graded_in_process")

LLAMA = published("meta-llama/Llama-3.1-8B")
QWEN = published("Qwen/Qwen2.5-0.5B")


def gpu(gigabytes, *, has_bfloat16=True):
    return Machine("a GPU", True, gigabytes * 1e9, math.inf, has_bfloat16)


def recommended(model, task="countdown", machine=None, is_short=lambda _: True):
    return recommend(model, task, shape_of(model), machine or gpu(80.0), is_short=is_short)


def new_config(*words):
    done = CliRunner().invoke(app, ["new", "--model", *map(str, words)])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("model", "machine"), [("nano", gpu(80.0)), (LLAMA, gpu(24.0, has_bfloat16=False))]
)
def test_the_file_is_the_config_and_every_setting_has_its_reason(tmp_path, model, machine):
    found = recommended(model, "arithmetic", machine)
    file = tmp_path / "config.yaml"
    file.write_text(config_text(found, "germline new", str(file)))
    assert load_config(file) == found.config
    lines = file.read_text().splitlines()
    for setting in found.settings:
        name = setting.rpartition(".")[2]
        place = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{name}:"))
        assert lines[place - 1].strip().startswith("# "), setting
    strategy = yaml.safe_load(file.read_text())["strategy"]
    assert (strategy["sigma"], strategy["learning_rate"]) == ("auto", "auto")


def test_settings_of_the_task_are_used_and_written(tmp_path, monkeypatch):
    # Found by a reader: rows with other columns could not be described, so no file was written.
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"query": "{i}?", "gold": "{i}"}}\n' for i in range(40)))
    words = ["nano", "--task", "rows.jsonl"]
    given = ["task.columns={prompt: query, answer: gold}", "task.max_new_tokens=7"]
    assert new_config(*words, "c.yaml")[0] == 2
    assert new_config(*words, "c.yaml", *given)[0] == 0
    found = load_config("c.yaml")
    assert found == load_config("c.yaml", given)
    assert found.task.max_new_tokens == 7
    assert "generations=3 has no effect here" in new_config(*words, "d.yaml", "generations=3")[1]


@pytest.mark.parametrize(("has_bfloat16", "dtype"), [(False, "float16"), (True, "auto")])
def test_a_gpu_without_bfloat16_gets_float16(has_bfloat16, dtype):
    found = recommended(QWEN, machine=gpu(80.0, has_bfloat16=has_bfloat16))
    assert found.config.engine.dtype == dtype


def test_what_does_not_fit_is_said_with_what_needs_less_memory(tmp_path):
    found = recommended(LLAMA, machine=gpu(24.0))
    texts = text_lengths(found.config, make_task(found.config.task))
    assert found.estimate == estimate(found.config, shape_of(LLAMA), texts, gpu(24.0))
    assert found.estimate.lacking
    said = config_text(found, "germline new", "c.yaml").replace("\n#", "")
    assert "Only 24.0 GB of device memory are there: less is needed by engine.dtype" in said
    assert "Only" not in config_text(recommended(QWEN), "germline new", "c.yaml")


@pytest.mark.parametrize("share", [0.5, 0.2, 0.05])
def test_sizes_are_reduced_until_the_run_is_short(share):
    def rollouts(config):
        return config.strategy.population * config.batch_size * config.generations

    usual = rollouts(recommended("nano", "conciseness").config)
    found = recommended(
        "nano", "conciseness", is_short=lambda config: rollouts(config) <= share * usual
    )
    assert share / 2 < rollouts(found.config) / usual <= share
    assert found.config.strategy.population % 2 == 0
    config = recommended("nano", "conciseness", is_short=lambda _: False).config
    assert (config.strategy.population, config.batch_size, config.generations) == (16, 4, 10)


def test_the_time_of_the_run_is_measured_printed_and_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measured = MeasuredTime(start_s=10.0, generation_s=0.5, completion_s=0.001)
    monkeypatch.setattr("germline.run.dry_run.measure_time", lambda *_: measured)
    words = ["nano", "--task", "conciseness", "--minutes"]
    status, output = new_config(*words, "0.8")
    assert status == 0, output
    seconds = measured.run_s(load_config("conciseness-nano.yaml"))
    assert 30 < seconds <= 48
    assert f"about {duration(seconds)} on this machine" in output
    status, output = new_config(*words, "0.1", "b.yaml")
    assert (status, "--minutes=0.1 is too short" in output) == (2, True)
    status, output = new_config(QWEN, *words[1:], "9", "b.yaml")
    assert (status, "are not on this machine" in output) == (2, True)
    assert [*tmp_path.iterdir()] == [tmp_path / "conciseness-nano.yaml"]


def test_the_config_of_a_model_folder_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = save_tiny(tmp_path / "my-model", "qwen2")
    words = [folder, "--task", "arithmetic"]
    status, output = new_config(*words)
    assert (status, "wrote arithmetic-my-model.yaml" in output) == (0, True)
    config = load_config(tmp_path / "arithmetic-my-model.yaml")
    assert config.model == str(folder)
    small = config.model_dump() | {"generations": 1, "batch_size": 2}
    small["task"]["max_new_tokens"] = 2
    small["strategy"] |= {"population": 2, "sigma": 0.01, "learning_rate": 0.01}
    small["held_out"]["examples"] = 2
    (record,) = germline.train(small, tmp_path / "run")
    assert record.generation == 0
    status, output = new_config(*words)
    assert (status, "arithmetic-my-model.yaml already exists" in output) == (2, True)


# --- the time of a run


SHORT = load_config(
    {"model": "nano", "task": "conciseness", "batch_size": 8, "generations": 10},
    ["strategy.population=16", "held_out.every=5", "held_out.examples=20"],
)


def test_a_run_takes_its_start_its_generations_and_its_held_out_scores():
    measured = MeasuredTime(start_s=5.0, generation_s=0.5, completion_s=0.01)
    assert measured.run_s(SHORT) == pytest.approx(5 + 10 * (0.5 + 128 * 0.01) + 3 * 20 * 0.01)


@pytest.mark.parametrize(
    ("small_cpu", "large_cpu", "load", "limit", "expected"),
    [
        (0.4, 4.88, 2.0, 600, (0.0, 0.0125)),
        (0.4, 1.744, 2.0, 600, (0.416, 0.006)),
        (6.4, 12.16, 1.0, 600, (4.48, 0.03)),
        (6.4, math.nan, 3.0, 60, (0.0, 0.3)),
        (0.4, 0.3, 1.0, 600, (0.4, 0.0)),
    ],
    ids=["proportional", "quick", "slow", "too slow for two", "noise of the clock"],
)
def test_two_sizes_tell_the_loads_apart(monkeypatch, small_cpu, large_cpu, load, limit, expected):
    large = dry_run.LARGE if small_cpu < dry_run.QUICK_S else dry_run.LARGER
    times = {dry_run.SMALL: (3.0, small_cpu), large: (4.0, large_cpu)}

    def trained(_, *size):
        start_s, cpu_s = times[size]
        return start_s, load * cpu_s, cpu_s

    monkeypatch.setattr(dry_run, "_trained", trained)
    found = measure_time(SHORT, limit)
    assert (found.start_s, found.generation_s, found.completion_s) == pytest.approx(
        (3.0, *expected), abs=1e-9
    )


def test_a_short_training_is_measured():
    toy = load_config({"engine": "toy", "task": "conciseness"}, ["strategy.sigma=0.1"])
    start_s, wall_s, cpu_s = dry_run._trained(toy, 4, 2)
    assert start_s > wall_s > 0
    assert cpu_s > 0
