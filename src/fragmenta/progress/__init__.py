"""The progress of a run, shown while it trains: in a terminal, in a log, in a notebook."""
