"""What a watched script shows of how it learns. One file, one thing that is looked at."""
