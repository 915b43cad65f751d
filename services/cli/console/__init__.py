"""Tables, JSON, names and quantities that several commands print."""
