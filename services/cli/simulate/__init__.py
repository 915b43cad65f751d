"""`cinquefoil simulate`: runs a scenario in virtual time and reports."""
