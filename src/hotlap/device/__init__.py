"""The device that computes: streams, events, memory, CUDA graphs; and process-wide settings."""
