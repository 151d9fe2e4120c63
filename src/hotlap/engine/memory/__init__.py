"""Memory that a run of the engine needs: predicted before it starts, measured, or limited."""
