"""Everything that a run's future depends on: saved, checked and put back."""
