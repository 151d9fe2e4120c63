"""What hotlap shows: results as text in a terminal, as JSON, and (`page`) as HTML."""
