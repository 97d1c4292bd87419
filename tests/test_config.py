"""Settings: all documented, short names of kinds, overrides that arrive."""

import pytest
from pydantic import ValidationError

from germline import registry
from germline.config import (
    Config,
    Countdown,
    InProcess,
    Jsonl,
    LinearSchedule,
    Nes,
    PythonFile,
    load_config,
)
from germline.config.config_files import as_yaml, read_value
from germline.config.reference import config_sections


def test_every_section_and_setting_says_what_it_means():
    for section in config_sections():
        assert section.meaning, section.places
        for setting in section.settings:
            place = (section.places, section.kind, setting.name)
            assert setting.meaning[-1:] in (".", "`") or setting.choices, place


def test_every_kind_is_a_frozen_section_that_is_strict_about_names():
    for group in registry.groups():
        for kind, section in registry.sections(group).items():
            assert section.model_fields["kind"].default == kind
            assert section.model_config["frozen"]
            assert section.model_config["extra"] == "forbid"


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        load_config({}).seed = 1  # type: ignore[misc]


def test_nothing_but_the_defaults_is_needed():
    assert load_config({}) == Config()


# --- short names and nested kinds


@pytest.mark.parametrize("room", ["task", "space", "shaping", "engine", "strategy", "fleet"])
def test_a_section_may_be_given_as_its_short_name_alone(room):
    for kind, section in registry.sections(room).items():
        if any(field.is_required() for field in section.model_fields.values()):
            continue  # a task made of a file, which has a short form of its own
        if kind == "sglang":
            continue  # says where its server is, or that it is to be started
        space = {"space": "full"} if room == "strategy" else {}  # one that every strategy can drive
        config = load_config({**space, room: kind})
        assert config == load_config({**space, room: {"kind": kind}})
        assert isinstance(getattr(config, room), section)


@pytest.mark.parametrize(("file", "section"), [("a/b.py", PythonFile), ("rows.jsonl", Jsonl)])
def test_a_task_may_be_given_as_its_file_alone(file, section):
    assert load_config({"task": file}).task == section(path=file)
    assert load_config({}, [f"task={file}", "task.split_seed=3"]).task == section(
        path=file, split_seed=3
    )


def test_a_task_file_stands_for_a_config_of_defaults():
    assert load_config("a/b.py", ["seed=3"]) == load_config({"task": "a/b.py", "seed": 3})


def test_a_nested_section_may_be_given_as_its_short_name_alone():
    config = load_config({"strategy": {"optimizer": "adam", "learning_rate": 0.01}})
    assert config.strategy.optimizer.kind == "adam"  # type: ignore[attr-defined]
    overrides = ["strategy.optimizer=adam", "strategy.learning_rate=0.01"]
    assert load_config({}, overrides) == config


def test_the_kind_may_be_left_out_where_the_default_is_meant():
    assert load_config({"space": {"rank": 4}}).space == load_config({}, ["space.rank=4"]).space
    assert load_config({"engine": {"dtype": "float16"}}).engine == InProcess(dtype="float16")


def test_a_short_name_can_be_refined_by_an_override():
    config = load_config({"task": "countdown"}, ["task.split=seeded", "task.split_seed=3"])
    assert config.task == Countdown(split="seeded", split_seed=3)


# --- overrides


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1E-3", 1e-3), ("0.002", 0.002), ("2", 2.0), (".5", 0.5)]
)
def test_a_number_is_a_number_however_it_is_written(text, value, tmp_path):
    assert load_config({}, [f"strategy.sigma={text}"]).strategy.sigma == value  # type: ignore[attr-defined]
    file = tmp_path / "c.yaml"
    file.write_text(f"strategy:\n  sigma: {text}\n")
    assert load_config(file).strategy.sigma == value  # type: ignore[attr-defined]


@pytest.mark.parametrize(("text", "value"), [("false", False), ("False", False), ("no", False)])
def test_mistake_17_false_is_false(text, value):
    assert load_config({}, [f"strategy.antithetic={text}"]).strategy == Nes(antithetic=value)
    assert load_config({}, [f"record.tensorboard={text}"]).record.tensorboard is value


def test_mistake_6_seed_0_stays_0():
    assert load_config({}, ["seed=0"]).seed == 0
    assert load_config({"seed": 0}).seed == 0
    assert load_config({"seed": -1}).seed == -1


def test_lists_and_sections_can_be_overridden():
    config = load_config({}, ["task.stop=[a, 'b c']", "strategy.sigma={start: 0.2, end: 0.1}"])
    assert config.task.stop == ("a", "b c")
    assert config.strategy.sigma == LinearSchedule(start=0.2, end=0.1)  # type: ignore[attr-defined]


def test_an_empty_list_and_null_are_values():
    assert load_config({}, ["task.stop=[]"]).task.stop == ()
    assert load_config({}, ["task.max_new_tokens=null"]).task.max_new_tokens is None


@pytest.mark.parametrize("layers", ["3", "0-9", "0,3,20-23"])
def test_layers_are_read_as_they_are_written(layers):
    assert load_config({}, [f"space.layers={layers}"]).space.layers == layers


def test_the_last_override_wins_and_the_source_is_left_alone():
    source = {"seed": 1, "strategy": {"population": 4}}
    config = load_config(source, ["seed=2", "seed=3", "strategy.population=8"])
    assert (config.seed, config.strategy.population) == (3, 8)
    assert source == {"seed": 1, "strategy": {"population": 4}}


def test_a_config_survives_json():
    plain = ["task=countdown", "space=full", "task.path=a/b.json"]
    adam = ["strategy.optimizer=adam", "strategy.learning_rate=0.01"]
    for overrides in (plain, [*plain, *adam]):
        config = load_config({}, overrides)
        assert load_config(config.model_dump(mode="json")) == config


TEXTS = ["1e3", "010", "0o7", "0x1F", "yes", "12:30", "null", "~", "", "3", "1.5", "1_000", ".inf"]


@pytest.mark.parametrize(
    "value", [*TEXTS, "true", "# a", "a: b", 3, 1e-05, 1e20, True, None, ["1e3"]]
)
def test_what_is_written_as_yaml_is_read_as_it_was(value):
    assert read_value(as_yaml({"x": value})) == {"x": value}
