"""What a fit that has ended is checked for, and the warning of each check."""
