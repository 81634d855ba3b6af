"""What becomes of a trained policy: evaluation, videos, export."""
