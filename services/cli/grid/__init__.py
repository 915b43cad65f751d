"""Grid events: orders, lists, reports."""
