"""Many small runs that answer one question about a config.

probe.py     which sigma and which learning rate
sigma_sweep.py  what members are like at one sigma
successive_halving.py    short trainings, the worse half of which ends at every round
trial_engine.py     the model that is tried out, set back to its start as often as wanted

run_seeds.py    one config with several run seeds
run_folder.py   runs that are trained once each, so that a study typed again goes on
intrinsic_dimension.py  the smallest random subspace that keeps most of an improvement
"""
