"""Using a trained policy: evaluation, videos, export."""
