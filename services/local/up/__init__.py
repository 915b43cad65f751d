"""A whole deployment as processes of one machine."""
