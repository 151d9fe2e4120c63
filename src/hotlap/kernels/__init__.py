"""Cross-entropy in chunks, which needs less memory; the technique `chunked_loss` uses it."""
