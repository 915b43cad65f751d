"""Checks of a machine that is to run a deployment."""
