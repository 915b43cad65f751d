"""What `cinquefoil predictor` does."""
