"""Writes a deployment file for models that exist already."""
