"""One optimizer step: passes, update, whether it is taken, CUDA graphs of it, sums over ranks."""
