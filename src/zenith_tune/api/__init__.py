"""What programs and notebooks call, and the command line calls too: plan, estimate, diagnose, tune."""
