"""Settings as a person reads them: without the unset ones, and still the same config."""

from germline.config import load_config

UNSET = load_config(
    {
        "task": {
            "kind": "countdown",
            "scorers": {"short": {"kind": "length", "start": 5, "end": 9}},
        },
        "held_out": {"patience": 2},
        "space": {"kind": "full", "exclude": ["*bias"]},
    }
)


def test_settings_without_the_unset_ones_are_the_same_config():
    shown = UNSET.without_unset()
    assert load_config(shown) == UNSET
    assert (shown["held_out"]["patience"], shown["space"]["exclude"]) == (2, ["*bias"])
    assert "threads" not in shown["engine"]
    assert "template" not in shown["prompt_search"]
    assert "few_shot" in shown["task"]  # 0 is a value


def test_settings_that_were_set_to_nothing_are_kept():
    rewarded = load_config({"task": {"kind": "rows", "reward": {}, "scorers": {"r": "repetition"}}})
    assert rewarded.without_unset()["task"]["reward"] == {}
