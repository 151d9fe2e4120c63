"""What was trained, given to others, and weights taken from them."""
