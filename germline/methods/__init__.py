"""Methods: how a run uses the rollouts of perturbed members (ES, RandOpt, policy gradient)."""
