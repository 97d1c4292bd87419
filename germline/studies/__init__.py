"""Studies: many small runs that answer one question about a config.

probe.py               sigma and learning rate for a config
sigma_sweep.py         measurements of members at one sigma
successive_halving.py  short trainings; the worse half ends after every round
trial_engine.py        the engine of a probe, which can be reset to the base model

run_seeds.py           one config with several run seeds
"""
