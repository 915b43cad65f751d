"""What a real GPU shows without being changed."""
