"""Results as text in a terminal and as JSON, texts of `hotlap explain`, and (`page`) HTML pages."""
