"""Samples kept in memory, and batches served from there: the technique `resident`."""
