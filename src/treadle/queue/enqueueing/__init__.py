"""Making jobs: options, validation, and inserts that share a transaction."""
