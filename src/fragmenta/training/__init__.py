"""Training: planning a run, the training loop, and stopping early."""
