"""One service in several regions: who sends how much of its demand where, and who may."""
