"""Action distributions, built without validation, each with sample and log-probability in one go."""
