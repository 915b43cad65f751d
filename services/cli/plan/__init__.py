"""Plans: decisions and their reasons."""
