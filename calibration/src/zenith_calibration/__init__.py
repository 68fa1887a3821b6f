"""What makes plans more exact: coefficients fitted to measured runs, and single ranks measured on one GPU."""
