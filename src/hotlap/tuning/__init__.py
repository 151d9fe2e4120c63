"""Finds the fastest plan by measured trials, and proves what it learns. Moves only the plan."""
