"""What the source of the user says, parsed: assignments, loops, variables read again. No torch."""
