"""Settings that were renamed: runs that recorded the old names go on as if nothing had happened."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from germline import GermlineError, load_config, replay, resume, train
from germline.cli.application import app
from germline.config.migrations import IMPLIED, RENAMED, VALUES, migrate, migrate_row, new_name
from germline.record import RunDirectory
from tests.toy_runs import settings

OLD = [(section, name) for section, names in RENAMED.items() for name in names]


def under_old_names(recorded):
    """Write a recorded config as the versions before the renaming did."""
    config = {}
    for name, value in recorded.items():
        names = {new: old for old, new in RENAMED.get(name, {}).items()}
        if isinstance(value, dict):
            value = {names.get(key, key): one for key, one in value.items()}
        config[{new: old for old, new in RENAMED[""].items()}.get(name, name)] = value
    for (section, setting), values in VALUES.items():
        old_name = {new: old for old, new in RENAMED.get(section, {}).items()}.get(setting, setting)
        back = {new: old for old, new in values.items()}
        if isinstance(config.get(section), dict) and old_name in config[section]:
            value = config[section][old_name]
            config[section][old_name] = back.get(value, value)
    return config


CONFIGS = {
    "an inprocess engine": [
        "engine={kind: inprocess, cuda_graphs: true}",
        "shaping=centered_ranks",
    ],
    "a server of vLLM": ["engine={kind: vllm, gpu_memory_utilization: 0.5}"],
    "a server of SGLang": ["engine={kind: sglang, base_url: 'http://x:1', retry_timeout_s: 7}"],
    "a fleet of Ray": ["fleet={kind: ray, engines: 3, min_engines: 2, hang_factor: 5}"],
    "sent by value": [
        "strategy.kind=sep_cma",
        "fleet={engines: 2, send_offsets: true}",
        "space=full",
    ],
    "an adapter": ["space={kind: lora}"],
    "a search of prompts": [
        "prompt_search={few_shot: [0, 1], learning_rate: 0.1, min_probability: 0.1}"
    ],
    "members that vote": ["strategy={population: 6}", "method={kind: randopt, ensemble_size: 2}"],
    "sampling by temperature": [
        "strategy={population: 6, learning_rate: 0.1}",
        "task.temperature=1",
        "method={kind: es_sample_gd, exploration: temperature}",
    ],
    "microbatches": ["microbatch={members: 2, examples: 1}", "batch_size=3"],
}


@pytest.mark.parametrize("overrides", CONFIGS.values(), ids=CONFIGS)
def test_a_recorded_config_means_the_same_under_its_old_names(overrides):
    recorded = load_config("demo", overrides).model_dump(mode="json")
    old = under_old_names(recorded)
    assert old != recorded
    assert load_config(migrate(old), []) == load_config(recorded, [])


def test_an_engine_of_before_members_were_batched_plays_one_at_a_time():
    assert migrate({"engine": {"kind": "inprocess"}})["engine"] == {
        "kind": "inprocess",
        **IMPLIED["inprocess"],
    }


@pytest.mark.parametrize(("section", "name"), OLD)
def test_an_old_name_is_refused_with_the_present_one(section, name):
    setting = f"{section}.{name}".removeprefix(".")
    with pytest.raises(
        GermlineError, match=rf"{setting}: unknown setting.*renamed to \S*{new_name(setting)}"
    ):
        load_config("demo", [f"{setting}=1"])


def test_a_setting_of_a_renamed_section_is_refused_with_both_names_as_they_are_now():
    assert new_name("choices.rate") == "prompt_search.learning_rate"
    assert new_name("choices.template") == "prompt_search.template"
    assert new_name("prompt_search.template") is None


def test_rows_of_a_searched_setting_are_read_under_its_present_name():
    found = {"shots": {"0": 0.4, "2": 0.6}, "temperature": {"0": 1.0}}
    present = {"few_shot": found["shots"], "temperature": found["temperature"]}
    read = {"generation": 3, "option_probabilities": present}
    assert migrate_row({"generation": 3, "choices": found}) == read
    assert migrate_row(read) == read
    assert migrate_row({"generation": 3}) == {"generation": 3}


def test_a_run_with_old_names_resumes_and_replays_to_the_same_digest(tmp_path):
    digests = [record.digest for record in train(settings("generations=4"), tmp_path / "whole")]
    list(train(settings("generations=2"), tmp_path / "begun"))
    path = tmp_path / "begun" / "run.json"
    facts = json.loads(path.read_text())
    facts["config"] = under_old_names(facts["config"])
    assert {"batch", "cell"} <= facts["config"].keys()
    path.write_text(json.dumps(facts))
    copy = shutil.copytree(tmp_path / "begun", tmp_path / "copy")
    assert replay(copy, 1) == digests[1]
    resumed = resume(tmp_path / "begun", ["generations=4"])
    assert [record.digest for record in resumed] == digests[2:]
    assert RunDirectory.open(tmp_path / "begun").config.batch_size == 4


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("space.start=x", "renamed to space.init_adapter, of kind lora or singular"),
        ("engine.cuda_graphs=fixed", "engine.cuda_graphs: must be true or false"),
    ],
)
def test_the_hint_says_what_the_present_setting_takes(override, words):
    with pytest.raises(GermlineError, match=words):
        load_config("demo", [override])


def test_eval_names_the_present_setting():
    shown = CliRunner().invoke(app, ["eval", "nano", "--task", "arithmetic", "cell.rows=64"])
    assert isinstance(shown.exception, SystemExit)
    assert "renamed to microbatch.rows" in shown.stderr
