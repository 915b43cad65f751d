"""The account of energy and carbon, as people read it."""
