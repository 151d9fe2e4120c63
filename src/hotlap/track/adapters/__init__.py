"""One file, one tracker: each is imported only in the process that feeds it."""
