"""Lists the data sets that there are, and brings them to this machine."""
