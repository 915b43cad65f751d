"""Tables, charts, quantities and JSON that several commands print."""
