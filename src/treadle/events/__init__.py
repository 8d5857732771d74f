"""What happened to jobs, told to listeners: the feed, streams and their frames."""
