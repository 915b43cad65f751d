"""How fast a variant runs, and what it draws, on which slice: one interface, measured or modelled.

The planner plans with these numbers; a simulated GPU behaves by them.
"""
