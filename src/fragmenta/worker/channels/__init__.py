"""Channels and mailboxes: they carry values between fragments."""
