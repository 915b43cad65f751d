"""Attacks on a suite with mutual TLS, and lies of its own parts, while honest clients go on."""
