"""Mistakes the field has made: which tests keep each of them out of this project.

The numbers are those of our notes on other projects. What a mistake was is said here in a line;
its tests say how it shows.
"""

import pytest

from tests.places import absent

MISTAKES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "weights restored by subtracting the noise in half precision",
        (
            "test_exactness::test_mistake_1_weights_are_not_restored_by_subtracting_noise_in_half_"
            "precision",
            "test_numerics::test_evaluating_with_masters_changes_no_bit",
        ),
    ),
    2: (
        "the update added in the dtype that is served",
        (
            "test_exactness::test_mistake_2_the_update_is_added_in_fp32_whatever_is_served",
            "test_numerics::test_the_update_that_masters_make_is_the_one_that_was_meant",
        ),
    ),
    3: (
        "a generator seeded alike for every tensor: same shapes, same noise",
        (
            "test_noise::test_mistake_3_same_shape_tensors_do_not_share_noise",
            "test_exactness::test_mistake_3_tensors_of_the_same_shape_get_noise_of_their_own",
        ),
    ),
    4: (
        "ranks of a tensor-parallel engine that draw the same noise for their shards",
        ("engines_real/test_vllm::test_two_workers_evaluate_the_same_members_as_inprocess",),
    ),
    5: (
        "results kept by a seed that may be drawn twice",
        (
            "test_strategies::test_mistake_5_no_perturbation_of_a_long_run_is_drawn_twice",
            "test_strategies::test_mistake_5_utilities_go_to_members_by_place_whatever_they_are",
        ),
    ),
    6: (
        "seed 0 taken for no seed; neighboring seeds that share populations",
        (
            "test_noise::test_mistake_6_seed_0_is_seed_0",
            "test_noise::test_mistake_6_neighboring_seeds_share_no_populations",
            "test_strategies::test_mistake_6_seed_0_is_seed_0",
            "test_strategies::test_mistake_6_neighboring_run_seeds_share_no_population",
            "test_config::test_mistake_6_seed_0_stays_0",
            "test_run::test_mistake_6_seed_0_42_and_1_are_three_runs",
        ),
    ),
    7: (
        "a resumed run that repeats the perturbations of its beginning",
        (
            "test_noise::test_mistake_7_noise_does_not_depend_on_what_was_drawn_before",
            "test_run::test_mistake_7_a_resumed_run_repeats_no_perturbation",
            "test_training::test_mistake_7_no_generation_repeats_the_perturbations_of_another",
        ),
    ),
    8: (
        "the prompt graded as a part of the completion",
        (
            "test_exactness::test_mistake_8_the_prompt_is_not_part_of_the_completion",
            "test_graders::test_mistake_8_the_prompt_earns_nothing_for_an_empty_completion",
        ),
    ),
    9: (
        "what a model wrote run as code",
        ("test_graders::test_mistake_9_a_tower_of_powers_is_refused_at_once",),
    ),
    10: (
        "examples nobody can solve: negative targets, a line break in the answer",
        (
            "test_graders::test_mistake_10_a_negative_target_can_be_met",
            "test_graders::test_mistake_10_a_line_break_inside_the_answer_costs_nothing",
        ),
    ),
    11: (
        "a detector of hacks that looks for the empty text only",
        (
            "test_degenerate_text::test_mistake_11_special_tokens_alone_are_seen_whatever_decoding_makes_"
            "of_them",
        ),
    ),
    12: (
        "generations without a difference unnoticed, near ties blown up",
        (
            "test_shaping::test_mistake_12_zero_variance_gives_exactly_zero",
            "test_shaping::test_mistake_12_near_ties_are_not_blown_up",
            "test_shaping::test_mistake_12_the_smallest_real_difference_still_counts",
            "test_signal_metrics::test_mistake_12_near_ties_are_no_information",
        ),
    ),
    13: (
        "ties broken by position: a gradient out of nothing",
        (
            "test_shaping::test_mistake_13_ties_are_not_broken_by_position",
            "test_shaping::test_mistake_13_ties_carry_no_gradient",
        ),
    ),
    15: (
        "a prefix cache kept across changes of weights, names of adapters used again",
        (
            "engines_real/test_vllm::test_the_prefix_cache_is_never_used_with_other_weights",
            "engines_real/test_equality::test_mistake_15_no_output_is_that_of_the_weights_before_"
            "an_update",
        ),
    ),
    16: (
        "checkpoints of fused names that nothing else loads",
        (
            "engines_real/test_equality::test_mistake_16_exports_have_the_names_hugging_face_loads",
            "engines_real/test_equality::test_exports_are_the_same_bytes",
        ),
    ),
    17: (
        "a generation too many, evaluations that never come, options accepted and ignored",
        (
            "test_training::test_mistake_17_exactly_the_generations_asked_for_run",
            "test_run::test_mistake_17_held_out_scores_at_the_start_when_due_and_at_the_end",
            "test_config::test_mistake_17_false_is_false",
            "test_cli::test_mistake_17_a_flag_takes_no_word_that_would_be_ignored",
            "test_cli::test_mistake_17_eval_refuses_settings_that_it_would_ignore",
            "test_cli_verbs::test_mistake_17_held_out_scores_come_when_they_are_due",
            "test_cli_verbs::test_mistake_17_an_override_reaches_the_run",
            "test_cli_verbs::test_mistake_17_every_option_of_generate_takes_effect",
        ),
    ),
    18: (
        "imports that move with another project's version, which pins it",
        ("test_vllm::test_one_module_imports_vllm_s_internals",),
    ),
    19: (
        "noise recovered from the weights it was added to",
        (
            "test_exactness::test_mistake_19_the_update_uses_the_noise_members_played_redrawn_not_"
            "recovered",
            "test_exactness::test_mistake_19_a_dense_member_is_the_rounded_sum_of_center_and_"
            "redrawn_noise",
        ),
    ),
    20: (
        "members that see other prompts, or have other luck",
        (
            "test_exactness::test_mistake_20_members_of_a_generation_have_the_same_prompts_and_the_"
            "same_luck",
            "test_rollout::test_mistake_20_all_members_play_the_same_examples_in_the_same_order",
            "test_rollout::test_mistake_20_members_with_the_same_weights_have_the_same_luck",
        ),
    ),
}

NOT_YET: dict[int, str] = {
    14: "errors of a scorer that count as a reward of 0: there is no scorer service",
}
"""Mistakes with what is not built here."""


@pytest.mark.parametrize("number", MISTAKES)
def test_the_tests_against_a_mistake_exist(number):
    _, places = MISTAKES[number]
    assert places
    assert absent(places) == []


def test_every_mistake_of_our_notes_has_its_place():
    assert sorted([*MISTAKES, *NOT_YET]) == list(range(1, 21))
