"""What replicas compute of a program: for every equation, which part of it each of them does and what they exchange."""
