"""Records as text, JSON and HTML."""
