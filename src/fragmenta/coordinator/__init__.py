"""Turns a training loop and a distribution policy into one program per fragment: place, merge, project."""
