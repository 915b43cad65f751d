"""The account of energy and carbon as tables, JSON, CSV and plots."""
