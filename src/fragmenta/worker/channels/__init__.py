"""What carries values between fragments."""
