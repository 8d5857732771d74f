"""What the SQL stores share."""
