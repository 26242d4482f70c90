"""What a kernel is built for, how it is built there, and how it is launched."""
