"""Rules about mistakes that cost learning, not time. One file, one rule."""
