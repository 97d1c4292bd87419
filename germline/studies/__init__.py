"""Studies: many small runs that answer one question about a config.

probe.py         sigma and learning rate for a config
sigma_sweep.py   measurements of members at growing sigmas, and the engine of a probe
run_seeds.py     one config with several run seeds
study_*.py       methods on tasks with several run seeds (`germline compare`)
sweep*.py        search of settings
"""
