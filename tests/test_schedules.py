"""A schedule starts where it says, ends where it says, and knows the length of the run."""

import pytest

from germline.schedules import scheduled


def test_number_is_constant():
    assert [scheduled(0.3, g, 5) for g in range(5)] == [0.3] * 5


def test_linear_goes_from_start_in_the_first_to_end_in_the_last_generation():
    values = [scheduled((0.1, 0.3), g, 5) for g in range(5)]
    assert values[0] == 0.1
    assert values[-1] == 0.3
    assert values == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3])


def test_linear_in_a_run_of_one_generation_is_its_start():
    assert scheduled((0.1, 0.3), 0, 1) == 0.1


@pytest.mark.parametrize("generation", [-1, 5])
def test_generation_outside_the_run_is_refused(generation):
    with pytest.raises(ValueError, match=f"generation {generation} is outside a run"):
        scheduled(0.3, generation, 5)
