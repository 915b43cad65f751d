"""The commands and their options; the work is done elsewhere.

Modules here import nothing heavy before a command runs, so that `--help` is instant and a service's
image needs only that service's libraries.
"""
