"""Files of the console for browsers, and reports as one page."""
