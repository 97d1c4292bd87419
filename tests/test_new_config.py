"""`germline new config`: settings for a model and a task that load, fit, and say why."""

import math
import re
from dataclasses import replace

import pytest
import yaml
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.config import load_config
from germline.estimates.estimate import estimate
from germline.estimates.hardware import GPUS
from germline.estimates.here import texts_here
from germline.estimates.model_shape import shape_of
from germline.estimates.recommended_config import config_text, recommend
from germline.types import GermlineError
from tests.tiny import save_tiny


def recommended(model, task="countdown", hardware="80gb", minutes=None):
    return recommend(model, task, shape_of(model), GPUS[hardware], minutes=minutes)


def written(found, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(config_text(found, "germline new config", str(file)))
    return file


def test_the_file_is_the_config_and_every_setting_has_its_reason(tmp_path):
    found = recommended("nano", "arithmetic")
    file = written(found, tmp_path)
    assert load_config(file) == found.config
    text = file.read_text()
    lines = text.splitlines()
    assert found.estimate.machine.source_of_times in text.replace("\n# ", " ")
    for one in found.settings:
        name = one.setting.rpartition(".")[2]
        place = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{name}:"))
        assert lines[place - 1].strip().startswith("# "), one.setting
    assert yaml.safe_load(text)["strategy"]["sigma"] == "auto"
    assert yaml.safe_load(text)["strategy"]["learning_rate"] == "auto"


def test_the_reason_of_the_held_out_scores_counts_them(tmp_path):
    found = recommended("nano", "arithmetic")
    (reason,) = [one.reason for one in found.settings if one.setting == "held_out.every"]
    small = {"strategy": {"population": 2, "sigma": 1e-3, "learning_rate": 1e-3}, "batch_size": 2}
    held_out = {"every": found.config.held_out.every, "examples": 2}
    config = {"engine": "toy", "task": "conciseness", "held_out": held_out, **small}
    config["generations"] = found.config.generations
    run = germline.train(config, tmp_path / "run").run().directory
    assert reason == f"{len(run.held_out())} scores in all, with those before and after the run."


def test_the_reason_of_the_held_out_examples_counts_those_that_are_there(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{i}?", "answer": "{i}"}}\n' for i in range(40)))
    found = recommended("nano", str(rows))
    (reason,) = [one.reason for one in found.settings if one.setting == "held_out.examples"]
    assert found.config.held_out.examples == 8
    assert "over 8 examples is up to 69 points wide" in reason


def test_settings_of_the_task_are_used_and_written(tmp_path, monkeypatch):
    # Found by a reader: rows with other columns could not be described, so no file was written.
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"query": "{i}?", "gold": "{i}"}}\n' for i in range(40)))
    words = ["new", "config", "--model", "nano", "--task", "rows.jsonl", "--out", "c.yaml"]
    given = ["task.columns={prompt: query, answer: gold}", "task.max_new_tokens=7"]
    assert CliRunner().invoke(app, words).exit_code == 2
    done = CliRunner().invoke(app, [*words, *given])
    assert done.exit_code == 0, done.output
    found = load_config("c.yaml")
    assert found == load_config("c.yaml", given)
    assert found.task.max_new_tokens == 7
    assert "  # Given with the command.\n  columns:" in (tmp_path / "c.yaml").read_text()
    refused = CliRunner().invoke(app, [*words[:-1], "d.yaml", "generations=3"])
    assert "generations=3 has no effect here; settings of a task start with task." in refused.output


def test_nano_is_searched_where_the_other_configs_search_it(tmp_path):
    done = CliRunner().invoke(app, ["new", "task", str(tmp_path / "riddles")])
    assert done.exit_code == 0, done.output
    of_template = load_config(tmp_path / "riddles.yaml").space
    assert recommended("nano", "arithmetic").config.space == of_template
    assert load_config("configs/arithmetic.yaml").space == of_template


@pytest.mark.parametrize(
    "model", ["nano", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-4B", "meta-llama/Llama-3.1-8B"]
)
@pytest.mark.parametrize("hardware", ["24gb", "80gb"])
def test_what_is_written_fits(model, hardware):
    found = recommended(model, hardware=hardware)
    shape = shape_of(model)
    again = estimate(found.config, shape, texts_here(found.config), GPUS[hardware])
    assert again.fits
    assert again.needed("device") == found.estimate.needed("device")


def test_a_setting_that_was_needed_to_fit_says_so():
    found = recommended("meta-llama/Llama-3.1-8B", hardware="24gb")
    changed = [one for one in found.settings if one.reason.startswith("Needed to fit")]
    assert changed
    assert "GB of device memory would be needed, and 24.0 GB are there" in changed[0].reason


def test_fewer_rows_of_a_microbatch_are_preferred_to_masters_on_the_host():
    found = recommended("meta-llama/Llama-3.1-8B")
    changed = [one.setting for one in found.settings if one.reason.startswith("Needed to fit")]
    assert changed == ["microbatch.rows"]
    assert found.config.microbatch.rows >= 128
    assert found.config.engine.master_device == "device"


@pytest.mark.parametrize(("hardware", "dtype"), [("t4", "float16"), ("24gb", "auto")])
def test_a_gpu_without_bfloat16_gets_float16(hardware, dtype):
    found = recommended("Qwen/Qwen2.5-0.5B", hardware=hardware)
    assert found.config.engine.dtype == dtype


@pytest.mark.parametrize("factor", [0.5, 0.2, 0.1])
def test_sizes_are_reduced_until_the_run_fits_the_minutes(factor):
    machine = replace(GPUS["80gb"], operation_s=0.0, bandwidth=math.inf)
    asked = ("nano", "conciseness", shape_of("nano"), machine)
    usual = recommend(*asked).estimate.run_s
    found = recommend(*asked, minutes=factor * usual / 60)
    assert factor / 2 < found.estimate.run_s / usual <= factor
    population = found.config.strategy.population or 0
    assert population >= 16
    assert population % 2 == 0
    assert found.config.batch_size >= 4
    assert found.config.generations >= 10


def test_minutes_that_suffice_change_nothing():
    assert recommended("nano", "conciseness", minutes=60.0) == recommended("nano", "conciseness")


def test_too_few_minutes_are_refused_with_the_time_of_the_smallest_run():
    smallest = r"10 generations of 16 members x 4 examples take \d:\d\d min; allow that time"
    with pytest.raises(GermlineError, match=rf"--minutes=0\.01 is too short: {smallest}"):
        recommended("nano", "conciseness", minutes=0.01)


def test_the_time_of_the_run_is_printed_and_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["new", "config", "--model", "nano", "--task", "conciseness", "--hardware", "80gb"]
    usual = recommended("nano", "conciseness").estimate.run_s
    done = CliRunner().invoke(app, [*words, "--minutes", f"{usual / 66}"])
    assert done.exit_code == 0, done.output
    said = re.search(r"generations, about (\d+:\d\d min) on H100", done.output)
    assert said, done.output
    text = (tmp_path / "conciseness-nano.yaml").read_text().replace("\n# ", " ")
    assert f"{said[1]} for the run with its calibration and held-out scores" in text
    assert "Reduced to fit the time (--minutes)" in text


def test_a_model_that_fits_nowhere_is_refused():
    with pytest.raises(GermlineError, match=r"Llama-3\.1-8B fits RTX 4060 .* neither in half"):
        recommended("meta-llama/Llama-3.1-8B", hardware="laptop-8gb")


def test_the_config_of_a_model_folder_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = save_tiny(tmp_path / "my-model", "qwen2")
    words = ["new", "config", "--model", str(folder), "--task", "arithmetic", "--hardware", "t4"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "wrote arithmetic-my-model.yaml" in done.output
    config = load_config(tmp_path / "arithmetic-my-model.yaml")
    assert config.model == str(folder)
    small = config.model_dump() | {"generations": 1, "batch_size": 2}
    small["task"]["max_new_tokens"] = 2
    small["strategy"]["population"] = 2
    small["strategy"]["sigma"] = small["strategy"]["learning_rate"] = 0.01
    small["held_out"]["examples"] = 2
    (record,) = germline.train(small, tmp_path / "run")
    assert record.generation == 0
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2
    assert "arithmetic-my-model.yaml already exists" in again.output


def test_a_task_or_machine_that_does_not_exist_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["new", "config", "--model", "nano"]
    wrong = CliRunner().invoke(app, [*words, "--task", "arithmetics"])
    assert (wrong.exit_code, "did you mean" in wrong.output) == (2, True)
    wrong = CliRunner().invoke(app, [*words, "--task", "arithmetic", "--hardware", "abacus"])
    assert (wrong.exit_code, "laptop-8gb" in wrong.output) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_the_next_command_for_another_machine_estimates_for_that_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["new", "config", "--model", "nano", "--task", "arithmetic", "--out"]
    there = CliRunner().invoke(app, [*words, "there.yaml", "--hardware", "80gb"]).output
    assert "\n  germline doctor --config there.yaml --hardware 80gb\n" in there
    here = CliRunner().invoke(app, [*words, "here.yaml"]).output
    assert "\n  germline train here.yaml --dry-run\n" in here
