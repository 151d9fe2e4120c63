"""The roles that a process plays which hotlap has attached to."""
