"""What is found out about a task before its first step counts."""
