"""Models that are no folder: names of the hub, its cache, and a hub that cannot be reached."""

import logging

import pytest
from huggingface_hub import constants

from germline.engines import hub_access
from germline.engines.pretrained import load_pretrained
from germline.estimates.model_shape import shape_of
from germline.types import GermlineError
from tests.tiny import save_tiny

NAME = "owner/model"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Let the hub have an address that nobody listens at, and its cache be an empty folder."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub" / "models--owner--model"


@pytest.mark.parametrize("name", ["no such", "a/b/c", "no such/model", "org/"])
def test_what_is_no_name_of_the_hub_is_refused_without_a_request(cache, monkeypatch, name):
    monkeypatch.setattr(hub_access, "get_session", lambda: pytest.fail("the network was used"))
    for load in (load_pretrained, shape_of):
        with pytest.raises(GermlineError, match=rf"model: '{name}' is no folder in .*OWNER/NAME"):
            load(name)


def test_a_hub_that_cannot_be_reached_is_asked_once_and_one_line_says_so(cache, caplog):
    with caplog.at_level(logging.INFO), pytest.raises(GermlineError) as raised:
        load_pretrained(NAME)
    assert f"model: '{NAME}' cannot be loaded (" in str(raised.value)
    assert "http://127.0.0.1:1" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not [message for message in caplog.messages if "Retry" in message]


def test_a_model_in_the_cache_is_loaded_where_the_hub_cannot_be_reached(cache, caplog):
    save_tiny(cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    with caplog.at_level(logging.INFO):
        assert load_pretrained(NAME).source == NAME
    assert not [message for message in caplog.messages if "Retry" in message]
    assert not constants.HF_HUB_OFFLINE
