"""How replicas share the work of a program: for every equation, the part that each computes and what they exchange."""
