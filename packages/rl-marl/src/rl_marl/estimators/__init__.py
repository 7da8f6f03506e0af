"""Value estimators of groups of agents."""
