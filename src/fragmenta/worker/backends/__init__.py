"""What computes a segment."""
