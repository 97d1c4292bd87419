"""Studies: many small runs that answer one question about a config.

probe.py         sigma and learning rate for a config
probe_advice.py  what a probe recommends, and why
sigma_sweep.py   measurements of members at growing sigmas
trial_engine.py  the engine of a probe, which can be reset; short trainings
run_seeds.py     one config with several run seeds
"""
