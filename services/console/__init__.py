"""What browsers load of the console, and reports as one page."""
