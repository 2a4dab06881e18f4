"""What the machine is doing, asked on threads of its own."""
