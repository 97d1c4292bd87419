"""Other things to make of the rollouts of perturbed members, writing the same run directory."""
