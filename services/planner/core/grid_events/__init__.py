"""Grid events: times in which a site may draw less power."""
