"""`cinquefoil load`: an open-loop load, and its books."""
