"""Pictures of runs, drawn from the files in their directories."""
