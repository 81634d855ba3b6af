"""Pictures of runs, drawn from the files that a run leaves."""
