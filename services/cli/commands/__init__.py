"""The words of the command line: what each takes, not how it is done.

Modules here import nothing heavy before a command runs, so that `--help` is instant and a service's
image needs only that service's libraries.
"""
