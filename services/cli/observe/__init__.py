"""`cinquefoil observe`: energy and carbon of what runs now, and what could be saved."""
