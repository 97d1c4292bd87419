"""The registry: every kind leads to its class, and misspelled names get a suggestion."""

from typing import Literal

import pytest

from germline import registry
from germline.config import SpaceBase
from germline.registry import did_you_mean
from germline.types import GermlineError

WITH_CLASSES = ("task", "space", "strategy", "optimizer", "shaping", "engine")


@pytest.mark.parametrize("group", WITH_CLASSES)
def test_every_kind_of_a_group_leads_to_the_class_that_implements_it(group):
    for kind in registry.sections(group):
        if kind not in ("vllm", "sglang", "verifiers"):  # imported where they are installed
            assert callable(registry.implementation(group, kind))


def test_an_unknown_kind_gets_a_suggestion_and_the_choice():
    with pytest.raises(GermlineError) as caught:
        registry.implementation("task", "countdwn")
    assert str(caught.value) == (
        "task.kind: there is no kind 'countdwn' (did you mean 'countdown'?); choose one of "
        + ", ".join(map(repr, registry.sections("task")))
    )


def test_a_group_has_the_kinds_that_are_registered():
    assert registry.sections("no group") == registry.sections("reward") == {}
    assert "exact" in registry.entries("reward")
    assert did_you_mean("xyz", registry.sections("task")) == ""
    with pytest.raises(GermlineError, match=r"baseline\.kind=running has no implementation"):
        registry.implementation("baseline", "running")


def test_a_plugin_cannot_replace_a_built_in_kind():
    class Theirs(SpaceBase):
        kind: Literal["full"] = "full"

    message = r"space\.kind=full is registered twice, by germline\.config\.spaces\.Full and by "
    with pytest.raises(GermlineError, match=message):
        registry.register("space", "theirs:Theirs")(Theirs)
    assert registry.implementation("space", "full").__module__ == "germline.spaces.full"
