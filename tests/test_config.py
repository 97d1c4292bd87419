"""Settings: all documented, short names of kinds, overrides that arrive."""

import typing
from types import UnionType

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from germline import registry
from germline.config import (
    Config,
    Countdown,
    InProcess,
    Jsonl,
    KindOf,
    LinearSchedule,
    Nes,
    PythonFile,
    Section,
    load_config,
)
from germline.config.config_files import as_yaml, read_value


def sections(section: type[BaseModel] = Config) -> set[type[BaseModel]]:
    """Return every section that can be reached from Config."""
    found = {section}
    for field in section.model_fields.values():
        inside = [getattr(one, "__metadata__", ()) for one in typing.get_args(field.annotation)]
        marks = [*field.metadata, *(mark for given in inside for mark in given)]
        groups = [one.group for one in marks if isinstance(one, KindOf)]
        kinds = [one for group in groups for one in registry.sections(group).values()]
        for one in (*parts(field.annotation), *kinds):
            if isinstance(one, type) and issubclass(one, BaseModel) and one not in found:
                found |= sections(one)
    return found


def parts(annotation):
    """Take unions and `Annotated` apart."""
    if typing.get_origin(annotation) in (typing.Union, UnionType, typing.Annotated):
        return [one for argument in typing.get_args(annotation) for one in parts(argument)]
    return [annotation]


def is_section(annotation):
    classes = known(annotation)
    return bool(classes) and all(issubclass(one, Section) for one in classes)


def known(annotation):
    return [one for one in parts(annotation) if isinstance(one, type)]


SETTINGS = [
    (section, name)
    for section in sorted(sections(), key=str)
    for name in section.model_fields
    if name != "kind"
]


@pytest.mark.parametrize(("section", "name"), SETTINGS, ids=str)
def test_every_setting_says_what_it_means(section, name):
    field = section.model_fields[name]
    if is_section(field.annotation):
        assert all(one.__doc__ for one in known(field.annotation))
    else:
        assert field.description
        assert field.description[0].isupper() or field.description[0] == "`"
        assert field.description.endswith((".", "`"))


@pytest.mark.parametrize("section", sorted(sections(), key=str))
def test_every_section_is_documented_frozen_and_strict_about_names(section):
    assert section.__doc__
    assert section.model_config["frozen"]
    assert section.model_config["extra"] == "forbid"


def test_every_setting_but_the_ends_of_a_line_and_your_own_file_has_a_default():
    without = {
        f"{section.__name__}.{name}"
        for section, name in SETTINGS
        if section.model_fields[name].get_default(call_default_factory=True) is PydanticUndefined
    }
    assert without == {
        "LinearSchedule.start",
        "LinearSchedule.end",
        "CosineSchedule.start",
        "CosineSchedule.end",
        "PlateauSchedule.start",
        "SuccessRateSigma.start",
        "NaturalGradientSigma.start",
        "OpenRlhf.url",
        "VllmClassify.url",
        "VllmScore.url",
        "Judge.url",
        "Judge.model",
        "GermlineScorer.url",
        "Classifier.model",
        "PythonFile.path",
        "LengthPenalty.start",
        "LengthPenalty.end",
        "Math.path",
        "SafeAlignment.scorers",
        "Jsonl.path",
        "Dataset.path",
        "Environment.path",
        "Verifiers.env",
    }


def test_the_table_of_kinds_holds_every_section_with_a_kind():
    named = {one for one in sections() if "kind" in one.model_fields}
    groups = [registry.sections(group) for group in registry.groups() if group != "reward"]
    assert named == {section for kinds in groups for section in kinds.values()}
    for kinds in groups:
        for kind, section in kinds.items():
            assert section.model_fields["kind"].default == kind


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
