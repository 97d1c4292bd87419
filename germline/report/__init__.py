"""Pictures of what a run did, drawn from its run directory alone."""
