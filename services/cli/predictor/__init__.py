"""Work of `cinquefoil predictor`."""
