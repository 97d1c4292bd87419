"""Settings: all documented, mistakes told with setting, value and remedy, overrides that arrive."""

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
from germline.types import GermlineError


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
def test_every_setting_says_in_one_line_what_it_means(section, name):
    field = section.model_fields[name]
    if is_section(field.annotation):
        assert all(one.__doc__ for one in known(field.annotation))
    else:
        assert field.description
        assert field.description[0].isupper() or field.description[0] == "`"
        assert field.description.endswith((".", "`"))
        assert "\n" not in field.description


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


def test_a_setting_of_another_kind_is_refused():
    with pytest.raises(GermlineError, match=r"space\.rank: unknown setting"):
        load_config({}, ["space.kind=full", "space.rank=2"])


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


@pytest.mark.parametrize("quote", ["'", '"'])
def test_what_is_quoted_in_an_override_is_a_text(quote):
    override = f"space.layers={quote}3{quote}"
    assert load_config({}, [override]).space.layers == "3"


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


# --- mistakes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "sed=1",
            r"sed: unknown setting \(did you mean 'seed'\?\); known here: batch_size, engine",
        ),
        ("strategy.sigm=1", r"strategy\.sigm: unknown setting \(did you mean 'sigma'\?\)"),
        (
            "strategy.optimizer.beta=1",
            r"strategy\.optimizer\.beta: unknown setting.*known here: decay_to, kind, momentum",
        ),
        ("task.tempurature=1", r"task\.tempurature: .*did you mean 'temperature'"),
        (
            "task={kind: jsonl, path: rows.jsonl, reward: {numerc: 1}}",
            r"task\.reward: must be .*\(did you mean 'numeric'\?\)",
        ),
        ("engine.devise=cpu", r"engine\.devise: .*did you mean 'device'"),
        ("fleet.engine=2", r"fleet\.engine: .*did you mean 'engines'"),
        ("record.figure_evry=1", r"record\.figure_evry: .*did you mean 'figure_every'"),
        ("strategy.sigma.begin=1", r"strategy\.sigma\.begin: unknown setting"),
        (
            "strategy.sigma=cosin",
            r"strategy\.sigma: must be a valid number.*found 'cosin'",
        ),
        ("strategy.sigma={kind: cosin}", r"strategy\.sigma: .*'cosin' \(did you mean 'cosine'\?"),
        ("strategy.sigma=plateau", r"strategy\.sigma\.start: is missing"),
        (
            "strategy.sigma={kind: plateau, start: 0.1, min: 0.2}",
            r"strategy\.sigma: min=0\.2 is not below start=0\.1.*lower min",
        ),
        ("strategy.sigma={kind: plateau, start: 1, factor: 1}", r"sigma\.factor: .*less than 1"),
        (
            "strategy.sigma={kind: cosine, start: 1, end: 0.1, warmup: 49}",
            r"strategy\.sigma\.warmup=49 leaves no way .* generations=50: use warmup=48 or less$",
        ),
        ("strategy.sigma={kind: cosine, start: 1, end: 0}", r"sigma from 1\.0 to 0\.0 reaches 0"),
        (
            "strategy.learning_rate={kind: plateau, start: 0.1}",
            r"strategy\.learning_rate: .*'plateau'; choose one of 'linear', 'cosine', 'auto'$",
        ),
        ("strategy.optimizer.momentum=1", r"optimizer\.momentum: .*less than 1 \(found 1\)"),
        ("strategy.optimizer.weight_decay=-1", r"optimizer\.weight_decay: .*equal to 0.*found -1"),
        ("strategy.optimizer.decay_to=start", r"decay_to=start would be ignored .*set weight_dec"),
        (
            "strategy={learning_rate: 0.01, optimizer: {weight_decay: 1000}}",
            r"learning_rate=0\.01 is 10: above 1, .*use weight_decay=100 or less",
        ),
        (
            "strategy={learning_rate: 0.01, optimizer: {weight_decay: 1e-7}}",
            r"is 1e-09: theta would not move.*use weight_decay=3e-06 or more",
        ),
        ("shaping.elite=0", r"shaping\.elite: .*greater than 0 \(found 0\)"),
        ("shaping.elite=1.1", r"shaping\.elite: .*less than or equal to 1 \(found 1\.1\)"),
        ("shaping.clip=0", r"shaping\.clip: .*greater than 0 \(found 0\)"),
        ("shaping={kind: raw, clip: 1}", r"shaping\.clip: unknown setting.*here: elite, kind"),
        ("strategy.sigma=0", r"strategy\.sigma: .*greater than 0.*found 0"),
        ("strategy.sigma=nan", r"strategy\.sigma: .*finite"),
        ("strategy.population=1", r"strategy: population=1 has no other member to compare with"),
        (
            "strategy.population=5",
            r"population=5 is odd .*use population=6 or antithetic=false",
        ),
        ("generations=0", r"generations: .*greater than or equal to 1 \(found 0\)"),
        ("generations=2.5", r"generations: .*integer.*found 2\.5"),
        ("generations=many", r"generations: .*integer.*found 'many'"),
        ("task.top_p=1.5", r"task\.top_p: .*less than or equal to 1 \(found 1\.5\)"),
        ("shaping=rank", r"shaping: .*'rank'.*'z_score', 'centered_ranks'"),
        ("space=ful", r"space: .*'ful'.*'full', 'low_rank'"),
        ("task=sudoku", r"task: .*'sudoku'.*'conciseness', 'arithmetic', 'countdown'"),
        ("fleet=slurm", r"fleet: there is no kind 'slurm'; choose one of 'local', 'ray'"),
        ("task=python", r"task\.path: is missing"),
        ("task=rows.tsv", r"task: .*'rows\.tsv'"),
        ("task={kind: a.jsonl, reward: exakt}", r"task\.reward: .*'exact'.*found 'exakt'"),
        ("task={kind: a.jsonl, reward: {exact: 0}}", r"task: reward=.* has no weight above 0"),
        ("task={kind: a.jsonl, metric: json}", r"metric=json is not part of reward="),
        (
            "task={kind: a.jsonl, pattern: x}",
            r"pattern=x would be ignored without task\.reward=regex",
        ),
        (
            "task={kind: a.jsonl, tolerance: 1}",
            r"tolerance=1 would be ignored without task\.reward=numeric",
        ),
        ("task={kind: a.jsonl, reward: regex, pattern: (}", r"pattern: is no regular expression"),
        ("task={kind: a.py, template: hello}", r"task\.template: names no field, .*\{question\}"),
        (
            "task={kind: a.jsonl, test_path: b.jsonl, split_seed: 1}",
            r"split_seed=1 would be ignored with task\.test_path=b\.jsonl",
        ),
        ("strategy.sigma=1e30", r"strategy: sigma=1e\+30 is above 1e\+06, .*near the size of the"),
        ("strategy={kind: sep_cma, sigma: 1e200}", r"strategy: sigma=1e\+200 is above 1e\+06"),
        (
            "strategy.learning_rate={start: 0, end: 0}",
            r"learning_rate from 0 to 0 leaves the model",
        ),
        (
            "engine.members_per_batch=0",
            r"engine\.members_per_batch: must be [a-z ]+ 1, or 'auto' \(found 0\)$",
        ),
        (
            "method={kind: randopt, sigmas: []}",
            r"method\.sigmas: must not be empty \(found \[\]\)$",
        ),
        (
            "method={kind: randopt, sigmas: [0]}",
            r"method\.sigmas\.0: must be greater than 0 [^\n]+$",
        ),
        ("seed.x=1", r"seed: .*integer.*found \{'x': 1\}"),
        ("held_out=5", r"held_out: .*found 5"),
    ],
)
def test_a_mistake_is_told_with_setting_value_and_remedy(override, message):
    with pytest.raises(GermlineError, match=rf"(?s)^config: .*{message}"):
        load_config({}, [override])


def test_a_single_value_has_no_settings_below_it():
    with pytest.raises(GermlineError, match=r"seed is a single value \(3\), so seed\.x cannot"):
        load_config({"seed": 3}, ["seed.x=1"])


@pytest.mark.parametrize("override", ["seed", "=3", "", "--quiet"])
def test_what_is_no_override_says_how_one_looks(override):
    with pytest.raises(GermlineError, match=r"must look like strategy\.sigma=0\.002"):
        load_config({}, [override])


def test_every_mistake_is_told_at_once():
    with pytest.raises(GermlineError) as caught:
        load_config({"sed": 1, "generations": 0, "task": {"top": 1}})
    assert {"sed:", "generations:", "task.top:"} <= set(str(caught.value).split())


def test_a_file_that_is_not_there_says_so():
    with pytest.raises(GermlineError, match=r"there is no file 'nowhere\.yaml'"):
        load_config("nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: [", "is not valid YAML"),
        ("- task", "must hold settings like `task: countdown`, found list"),
        ("", "is empty: write settings like"),
    ],
)
def test_a_file_that_holds_no_settings_says_what_it_holds(text, message, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(GermlineError, match=message):
        load_config(file)
