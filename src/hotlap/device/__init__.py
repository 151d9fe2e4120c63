"""An accelerator for the engine: streams, events, graphs; and torch's global switches."""
