"""What an unedited script's process does for hotlap: a session, and a part for each role."""
