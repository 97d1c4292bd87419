"""Files of settings laid over a config, between and after single settings."""

import pytest

from germline.config import LowRank, load_config
from germline.types import GermlineError

BASE = {"task": "arithmetic", "space": "low_rank", "strategy": {"population": 6, "sigma": 0.1}}


@pytest.fixture
def file(tmp_path):
    def write(text, name="over.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_a_file_replaces_what_it_names_and_nothing_else(file):
    config = load_config(BASE, [file("strategy: {sigma: 0.2}\nbatch_size: 7\n")])
    assert (config.strategy.sigma, config.strategy.population) == (0.2, 6)  # type: ignore[attr-defined]
    assert (config.batch_size, config.task.kind) == (7, "arithmetic")


def test_files_and_settings_count_in_the_order_given(file):
    first, second = file("seed: 1\nbatch_size: 2\n", "a.yaml"), file("seed: 3\n", "b.yml")
    config = load_config(BASE, ["batch_size=9", first, second, "generations=5"])
    assert (config.seed, config.batch_size, config.generations) == (3, 2, 5)
    assert load_config(BASE, [first, "batch_size=9"]).batch_size == 9


def test_a_section_of_another_kind_takes_the_whole_place(file):
    base = {**BASE, "space": {"kind": "low_rank", "rank": 3}}
    config = load_config(base, [file("space: {kind: full, layers: '3'}\n")])
    assert (config.space.kind, config.space.layers) == ("full", "3")


def test_a_section_of_the_same_kind_is_refined_however_it_is_spelled(file):
    refined = file("space: {kind: low_rank, rank: 2}\ntask: {max_new_tokens: 5}\n")
    config = load_config(BASE, [refined])
    assert config.space == LowRank(rank=2)
    assert (config.task.kind, config.task.max_new_tokens) == ("arithmetic", 5)


def test_the_value_of_a_setting_may_look_like_a_file():
    assert load_config(BASE, ["model=my.yaml"]).model == "my.yaml"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("missing.yaml", r"there is no file 'missing.yaml'"),
        ("sigma", r"'sigma' must look like strategy.sigma=0.002, or be a .yaml file"),
    ],
)
def test_what_is_neither_file_nor_setting_is_refused(override, message):
    with pytest.raises(GermlineError, match=message):
        load_config(BASE, [override])


def test_a_file_that_holds_no_settings_is_refused(file):
    with pytest.raises(GermlineError, match=r"over.yaml must hold settings"):
        load_config(BASE, [file("0.02\n")])
