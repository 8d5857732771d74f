"""Where a function is called: on the worker's loop, in a thread, in a child process."""
