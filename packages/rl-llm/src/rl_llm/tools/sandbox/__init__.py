"""Running the code that a model wrote: one executor, several levels of isolation, one set of tests."""
