"""What every service needs and none owns."""
