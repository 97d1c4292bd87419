"""Environments of engines: whole or not there, built once, and what cannot be built is said."""

import dataclasses
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checks.engines.build import RECIPES, NotBuilt, Recipe, ensure, root, skips


@pytest.fixture
def recipe(tmp_path):
    """An environment of nothing, which takes seconds to build."""
    requirements = tmp_path / "nothing.txt"
    requirements.write_text("# nothing\n")
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "stands_beside.py").write_text("")
    return Recipe("nothing", requirements, "stands_beside", beside)


@pytest.mark.slow
def test_what_a_build_left_half_done_is_built_anew_by_one_of_those_who_ask(
    recipe, tmp_path, capsys
):
    python = tmp_path / f"nothing-{recipe.digest()}" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("half an interpreter")
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda _: ensure(recipe, tmp_path), range(2))) == [python, python]
    assert capsys.readouterr().err.count("building") == 1
    done = subprocess.run([python, "-c", "import stands_beside; print(1)"], stdout=subprocess.PIPE)
    assert done.stdout == b"1\n"


@pytest.mark.slow
def test_what_cannot_be_built_says_why_and_is_not_taken_for_whole(recipe, tmp_path, capsys):
    asks_too_much = dataclasses.replace(recipe, module="nobody_has_this")
    for _ in range(2):
        with pytest.raises(NotBuilt, match=r"(?s)NOTHING.*No module named.*GERMLINE_SKIP_ENGINES"):
            ensure(asks_too_much, tmp_path)
    assert capsys.readouterr().err.count("building") == 2


def test_an_environment_is_another_one_when_anything_it_is_made_of_changes(recipe):
    digests = {recipe.digest()}
    recipe.requirements.write_text("something==1.0\n")
    digests.add(recipe.digest())
    (recipe.beside / "stands_beside.py").write_text("A = 1\n")
    digests.add(recipe.digest())
    assert len(digests) == 3


def test_engines_are_skipped_by_name_and_nothing_else_is_taken_for_one():
    assert skips("", RECIPES) == set()
    assert skips("vllm", RECIPES) == {"vllm"}
    assert skips("vllm, sglang", RECIPES) == skips("all", RECIPES) == {"vllm", "sglang"}
    with pytest.raises(NotBuilt, match=r"GERMLINE_SKIP_ENGINES=vlm names vlm.*sglang, vllm or all"):
        skips("vlm", RECIPES)


def test_environments_stand_where_a_setting_says_and_else_in_the_cache(tmp_path):
    assert root({"GERMLINE_ENGINES_DIR": "/somewhere"}) == Path("/somewhere")
    assert root({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "germline" / "engines"
    assert root({}) == Path.home() / ".cache" / "germline" / "engines"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_version_is_exact(recipe):
    lines = [line for line in recipe.requirements.read_text().splitlines() if line[:1] != "#"]
    assert len(lines) > 100
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == []
