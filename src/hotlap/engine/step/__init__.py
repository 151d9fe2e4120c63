"""One optimizer step, in each of the ways in which it is taken."""
