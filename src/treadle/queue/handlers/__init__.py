"""What users write: tasks, flows, steps, hooks and the context that handlers get."""
