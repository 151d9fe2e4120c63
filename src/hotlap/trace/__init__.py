"""What a run does, as it is recorded: the time of each phase of a step, its lines, its events."""
