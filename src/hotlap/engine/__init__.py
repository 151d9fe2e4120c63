"""Our own training engine: a task, executed under a plan."""
