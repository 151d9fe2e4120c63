"""Search for better hyperparameters: its space, trials, early stopping, journal and workers."""
