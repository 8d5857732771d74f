"""The child process that runs one handler at a time."""
