"""What runs on each node of a job, and the commands that start it there."""
