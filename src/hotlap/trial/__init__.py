"""The child's side of a measurement. What is in here runs inside the measured process."""
