"""Settings and their kinds: documented, short forms, overrides that arrive, files of settings."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import ValidationError

from germline import registry
from germline.cli.inventory import GROUPS
from germline.config import Config, SpaceBase, load_config
from germline.config.config_files import as_yaml, read_value
from germline.config.reference import config_sections
from germline.types import GermlineError

BASE = {"task": "arithmetic", "space": "low_rank", "strategy": {"population": 6, "sigma": 0.1}}
RANKED = {**BASE, "space": {"kind": "low_rank", "rank": 3, "include": ["*mlp*"]}}
ROWS = {"kind": "jsonl", "path": "rows.jsonl"}


def test_every_section_and_setting_says_what_it_means():
    for section in config_sections():
        assert section.meaning, section.places
        for setting in section.settings:
            place = (section.places, section.kind, setting.name)
            assert setting.meaning[-1:] in (".", "`") or "`" in setting.accepts, place


def test_every_kind_is_a_frozen_section_that_is_strict_about_names():
    for group in GROUPS.values():
        for kind, section in registry.sections(group).items():
            assert section.model_fields["kind"].default == kind
            assert section.model_config["frozen"]
            assert section.model_config["extra"] == "forbid"
    with pytest.raises(ValidationError, match="frozen"):
        load_config({}).seed = 1  # type: ignore[misc]
    assert registry.sections("reward") == registry.sections("no group") == {}


def test_a_plugin_cannot_replace_a_built_in_kind():
    class Theirs(SpaceBase):
        kind: Literal["full"] = "full"

    message = r"space\.kind=full is registered twice, by germline\.config\.search\.Full and by "
    with pytest.raises(GermlineError, match=message):
        registry.register("space", "theirs:Theirs")(Theirs)
    assert registry.implementation("space", "full").__module__ == "germline.spaces.full"


# --- short forms and overrides


@pytest.mark.parametrize("group", ["task", "space", "shaping", "engine", "strategy", "fleet"])
def test_a_section_may_be_given_as_its_short_name_alone(group):
    for kind, section in registry.sections(group).items():
        if any(field.is_required() for field in section.model_fields.values()):
            continue  # a task made of a file, which has a short form of its own
        if kind == "sglang":
            continue  # says where its server is, or that it is to be started
        space = {"space": "full"} if group == "strategy" else {}  # one for every strategy
        config = load_config({**space, group: kind})
        assert config == load_config({**space, group: {"kind": kind}})
        assert isinstance(getattr(config, group), section)


PYTHON = {"kind": "python", "path": "a/b.py"}
ADAM = {"optimizer": {"kind": "adam"}, "learning_rate": 0.01}


@pytest.mark.parametrize(
    ("short", "overrides", "whole"),
    [
        ({}, [], Config().model_dump()),
        ({"task": "a/b.py"}, ["seed=3"], {"task": PYTHON, "seed": 3}),
        ("a/b.py", ["seed=3"], {"task": PYTHON, "seed": 3}),
        ({}, ["task=rows.jsonl", "task.split_seed=3"], {"task": {**ROWS, "split_seed": 3}}),
        ({}, ["task=rows #2.jsonl"], {"task": {"kind": "jsonl", "path": "rows #2.jsonl"}}),
        ({"strategy": {**ADAM, "optimizer": "adam"}}, [], {"strategy": ADAM}),
        ({}, ["strategy.optimizer=adam", "strategy.learning_rate=0.01"], {"strategy": ADAM}),
        ({}, ["space.rank=4"], {"space": {"kind": "low_rank", "rank": 4}}),
        ({}, ["strategy.antithetic=False"], {"strategy": {"antithetic": False}}),  # mistake 17
        ({}, ["record.tensorboard=no"], {"record": {"tensorboard": False}}),
        ({"seed": 5}, ["seed=0"], {"seed": 0}),  # mistake 6
        ({"seed": 1}, ["seed=2", "seed=-1"], {"seed": -1}),
        (
            {"task": "countdown"},
            ["task.split=seeded"],
            {"task": {"kind": "countdown", "split": "seeded"}},
        ),
        ({"space": {"layers": 3}}, [], {"space": {"layers": "3"}}),
        ({}, ["space.layers=3"], {"space": {"layers": "3"}}),
        ({}, ["space.layers=0,3,20-23"], {"space": {"layers": "0,3,20-23"}}),
        (
            {},
            ["strategy.sigma={start: 0.2, end: 0.1}"],
            {"strategy": {"sigma": {"kind": "linear", "start": 0.2, "end": 0.1}}},
        ),
        (
            {"task": {**ROWS, "reward": "regex"}},
            ["task.reward.exact=0.5"],
            {"task": {**ROWS, "reward": {"regex": 1, "exact": 0.5}}},
        ),
        (RANKED, ["space.kind=lora"], {**BASE, "space": {**RANKED["space"], "kind": "lora"}}),  # type: ignore[dict-item]
        ({"model": Path("models/mine")}, [], {"model": "models/mine"}),
    ],
)
def test_what_is_short_means_the_whole(short, overrides, whole):
    config = load_config(short, overrides)
    assert config == load_config(whole)
    assert load_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("task.stop=# a\n", ("# a\n",)),
        ("task.stop=[a, 'b c']", ("a", "b c")),
        ("task.stop=[]", ()),
        ("task.stop=null", None),
        ("task.system_prompt=Solve it. #no words", "Solve it. #no words"),
        ("task.system_prompt=one\n two\n", "one\n two\n"),
        ("task.system_prompt=1e5", "1e5"),
        ("task.system_prompt='quoted'", "'quoted'"),
        ("task.system_prompt=null", None),
        ("task.template=! {question}", "! {question}"),
        ("task.template=Question: {question}", "Question: {question}"),
        ("task.template={question}", "{question}"),
        ("task.path=rows #2.jsonl", Path("rows #2.jsonl")),
        ("task.columns.prompt=a: b", {"prompt": "a: b"}),
        ("space.include=*mix*", ("*mix*",)),
        ("model=inf", "inf"),
        ("model=no", "no"),
        ("model=my.yaml", "my.yaml"),
    ],
)
def test_a_text_is_taken_as_it_is_written(override, value):
    section, _, name = override.partition("=")[0].partition(".")
    found = getattr(load_config({"task": ROWS}, [override]), section)
    assert (getattr(found, name.partition(".")[0]) if name else found) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 1e-3), ("1E-3", 1e-3), ("0.002", 0.002), ("2", 2), (".5", 0.5), ("010", 10)),
        *(("-007", -7), ("0x10", 16), ("1_000", 1000)),
    ],
)
def test_a_number_is_a_number_however_it_is_written(text, value, file):
    """A leading zero does not make it octal."""
    setting = "seed" if value in (-7, 16, 1000) else "strategy.learning_rate"
    section, _, name = setting.rpartition(".")
    written = f"{section}:\n  {name}: {text}\n" if section else f"{name}: {text}\n"
    for override in (f"{setting}={text}", file(written)):
        config = load_config(BASE, [override])
        found = config.seed if setting == "seed" else config.strategy.learning_rate  # type: ignore[attr-defined]
        assert found == value


TEXTS = ["1e3", "010", "0o7", "0x1F", "yes", "12:30", "null", "~", "", "3", "1.5", "1_000", ".inf"]


@pytest.mark.parametrize(
    "value", [*TEXTS, "true", "# a", "a: b", 3, 1e-05, 1e20, True, None, ["1e3"]]
)
def test_what_is_written_as_yaml_is_read_as_it_was(value):
    assert read_value(as_yaml({"x": value})) == {"x": value}


def test_words_of_a_file_are_those_of_yaml_1_2(file):
    config = load_config({}, [file("task: {kind: jsonl, path: x, answer: no}\nmodel: 12:30:00\n")])
    assert (config.task.answer, config.model) == ("no", "12:30:00")  # type: ignore[attr-defined]


# --- files of settings laid over a config, between and after single settings


@pytest.fixture
def file(tmp_path):
    def write(text, name="over.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_files_and_settings_count_in_the_order_given(file):
    first, second = file("seed: 1\nbatch_size: 2\n", "a.yaml"), file("seed: 3\n", "b.yml")
    source = {**BASE, "batch_size": 9}
    config = load_config(source, [first, second, "generations=5"])
    assert (config.seed, config.batch_size, config.generations) == (3, 2, 5)
    assert load_config(BASE, [first, "batch_size=9"]).batch_size == 9
    assert source == {**BASE, "batch_size": 9}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("strategy: {sigma: 0.2}", {"strategy": {"population": 6, "sigma": 0.2}}),
        ("space: {kind: full, layers: '3'}", {"space": {"kind": "full", "layers": "3"}}),
        ("space: {kind: low_rank, rank: 2}", {"space": {"rank": 2, "include": ["*mlp*"]}}),
        ("task: {max_new_tokens: 5}", {"task": {"kind": "arithmetic", "max_new_tokens": 5}}),
    ],
)
def test_a_file_refines_sections_of_its_kinds_and_replaces_others(file, text, changes):
    assert load_config(RANKED, [file(text)]) == load_config({**RANKED, **changes})


# --- relative paths in a config file


def written(folder):
    folder.mkdir(exist_ok=True)
    (folder / "riddles.jsonl").write_text('{"prompt": "1?", "answer": "1"}\n')
    (folder / "a.yaml").write_text("task: riddles.jsonl\n")
    (folder / "b.yaml").write_text("task: {kind: jsonl, path: riddles.jsonl}\n")


def path_of(*given):
    return load_config(*given).task.model_dump()["path"]


def test_a_task_is_found_in_the_working_directory_or_beside_its_config(tmp_path, monkeypatch):
    written(tmp_path / "tasks")
    (tmp_path / "tasks" / "arithmetic").mkdir()
    (tmp_path / "tasks" / "c.yaml").write_text("task: arithmetic\n")
    monkeypatch.chdir(tmp_path)
    for config in ("tasks/a.yaml", "tasks/b.yaml"):
        assert path_of(config) == Path("tasks/riddles.jsonl")
    assert path_of({}, ["tasks/a.yaml"]) == Path("tasks/riddles.jsonl")
    assert path_of({}, ["task=riddles.jsonl"]) == Path("riddles.jsonl")
    assert load_config("tasks/c.yaml").task.kind == "arithmetic"  # no path
    written(tmp_path)
    assert path_of("tasks/a.yaml") == Path("riddles.jsonl")


def test_models_and_adapters_beside_their_config_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "study"
    for name in ("base", "adapter", "rewards"):
        (folder / name).mkdir(parents=True)
    (folder / "set.py").write_text("")
    (folder / "c.yaml").write_text(
        "model: base\nspace: {kind: lora, init_adapter: adapter}\n"
        "task: {kind: verifiers, env: set.py, scorers: {r: {kind: classifier, model: rewards}}}\n"
        "held_out: {scorers: {r: {kind: classifier, model: rewards}}}\n"
    )
    (folder / "nano").mkdir()
    (folder / "nano.yaml").write_text(
        "model: nano\ntask: {scorers: {j: {kind: judge, model: rewards, url: 'http://x'}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    config = load_config("study/c.yaml")
    given = (config.model, config.space.init_adapter, config.task.env)  # type: ignore[attr-defined]
    assert given == ("study/base", "study/adapter", "study/set.py")
    assert {one.model for one in config.scorers.values()} == {"study/rewards"}  # type: ignore[attr-defined]
    absolute = config.with_absolute_paths()
    assert absolute.model == str(folder / "base")
    assert absolute.space.init_adapter == str(folder / "adapter")  # type: ignore[attr-defined]
    nano = load_config("study/nano.yaml")
    judge = nano.task.scorers["j"]
    assert (nano.model, judge.model) == ("nano", "rewards")  # type: ignore[attr-defined]
